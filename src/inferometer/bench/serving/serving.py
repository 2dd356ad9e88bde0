"""What requests to a server come to: the record's `serving`. Pure arithmetic; what failed is counted apart and is in no other figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from inferometer.bench.records.statistics import Summary
from inferometer.bench.serving.served_request import ServedRequest

# Above this share of one core the client may be what is slow: it has no second one.
CLIENT_SHARE: Final = 0.8
# A client that is later than this with one request in a hundred does not keep the schedule.
LATE_MS: Final = 10.0
# A gap a token is more numbers than a record should carry; its statistics say what there is to say.
_MOST_SAMPLES: Final = 4096


@dataclass(frozen=True, slots=True)
class Slo:
    """The times that a request must keep to count as goodput, in milliseconds; None for any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def asked(self) -> bool:
        """Whether there is anything to keep."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def met(self, request: ServedRequest) -> bool:
        """Whether a served request kept them. One of a single token has no time between tokens to miss."""
        tpot = request.tpot_ms
        return (self.ttft_ms is None or request.ttft_ms <= self.ttft_ms) and (self.tpot_ms is None or tpot is None or tpot <= self.tpot_ms)


@dataclass(frozen=True, slots=True)
class ClientCost:
    """What the client itself took over the measured requests: seconds of processor time, and of the clock."""

    cpu_s: float
    wall_s: float

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


def serving(
    requests: Sequence[ServedRequest], *, slo: Slo, new_tokens: int, prompt_tokens: int, client: ClientCost, api: str, forced: bool
) -> dict[str, Any]:
    """The record's `serving` of the measured `requests`; raises ValueError where none was served.

    Times are in milliseconds. `ttft`, `tpot` and `e2e` have one sample a request in the order in which they were due; `itl` one a token.
    goodput: requests a second that kept the SLO, None without one. forced: whether the server was told to go on past an end token.
    """
    served = [each for each in requests if each.failure is None]
    if not served:
        raise ValueError("none of the requests was served")
    duration = max(each.ended_s for each in requests) - min(each.due_s for each in requests)
    lengths = [each.total for each in served if each.total is not None]
    late = [1000 * (each.sent_s - each.due_s) for each in requests]
    uncounted = sum(each.tokens is None for each in served)
    gaps = None if uncounted else [gap for each in served for gap in each.itl_ms()]
    tpots = [tpot for each in served if (tpot := each.tpot_ms) is not None]
    kept = sum(slo.met(each) for each in served)
    lateness = Summary.of(max(value, 0.0) for value in late)
    return {
        "unit": "ms",
        "ttft": _figures([each.ttft_ms for each in served]),
        "itl": _figures(gaps),
        "tpot": _figures(tpots),
        "e2e": _figures([each.e2e_ms for each in served]),
        "goodput": kept / duration if slo.asked else None,
        "goodput_share": kept / len(requests) if slo.asked else None,
        "failed": len(requests) - len(served),
        "failures": dict(Counter(each.failure[0] for each in requests if each.failure is not None)),
        "served": len(served),
        "duration_s": duration,
        "requests_s": len(served) / duration,
        "output_tok_s": sum(lengths) / duration if len(lengths) == len(served) else None,
        "output_tokens": _lengths(lengths),
        "prompt_tokens": _lengths([each.prompt_tokens for each in served if each.prompt_tokens is not None]),
        "length_forced": forced,
        "api": api,
        "client": {
            "cpu_share": client.share,
            "late_ms": {"p50": lateness.p50, "p99": lateness.p99, "max": lateness.max},
            "bound": client.share >= CLIENT_SHARE or lateness.p99 > LATE_MS,
        },
        "notes": _notes(served, lengths, uncounted, client, lateness.p99, new_tokens, prompt_tokens, forced=forced),
    }


def _figures(samples: Sequence[float] | None) -> dict[str, Any] | None:
    """None for nothing that was measured."""
    if not samples:
        return None
    found = asdict(Summary.of(samples))
    return {**found, "count": len(samples), "samples": list(samples) if len(samples) <= _MOST_SAMPLES else None}


def _lengths(found: Sequence[int]) -> Mapping[str, float] | None:
    return {"mean": sum(found) / len(found), "min": min(found), "max": max(found)} if found else None


def _notes(
    served: Sequence[ServedRequest],
    lengths: Sequence[int],
    uncounted: int,
    client: ClientCost,
    late_ms: float,
    new_tokens: int,
    prompt_tokens: int,
    *,
    forced: bool,
) -> list[str]:
    """What a reader of the figures must know of them."""
    notes = []
    if uncounted:
        notes.append(
            f"the server does not say how many tokens a chunk holds, and {uncounted} of {len(served)} streams had not one in each: "
            "no time between tokens"
        )
    if len(lengths) < len(served):
        notes.append("the server does not say how many tokens it generated: no tokens a second")
    if any(length != new_tokens for length in lengths):
        why = "though it was told to go on past an end token" if forced else "as its API cannot make it go on past an end token"
        notes.append(f"answers have {min(lengths)} to {max(lengths)} tokens, not {new_tokens}, {why}")
    prompts = {each.prompt_tokens for each in served if each.prompt_tokens is not None}
    if prompts - {prompt_tokens}:
        notes.append(
            f"prompts have {min(prompts)} to {max(prompts)} tokens by the server's count, not {prompt_tokens}; give its --tokenizer"
        )
    if client.share >= CLIENT_SHARE:
        notes.append(f"the client took {client.share:.0%} of a core: it may be what binds, and not the server")
    if late_ms > LATE_MS:
        notes.append(f"the client sent one request in a hundred {late_ms:.0f} ms late or more: it does not keep the schedule")
    return notes
