"""Times of requests from the arrivals of their tokens, to the last digit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.bench.serving.served_request import Arrival, ServedRequest
from inferometer.bench.serving.serving import ClientCost, Slo, serving


def asked(*arrivals: tuple[float, int | None], due: float = 0.0, late: float = 0.0, **changes: Any) -> ServedRequest:
    made = tuple(Arrival(at, tokens) for at, tokens in arrivals)
    known = [tokens for _, tokens in arrivals if tokens is not None]
    values: dict[str, Any] = {
        "due_s": due, "sent_s": due + late, "ended_s": arrivals[-1][0] if arrivals else due + 1, "arrivals": made,
        "total": sum(known) if len(known) == len(arrivals) else None, "prompt_tokens": 16,
    }  # fmt: skip
    return ServedRequest(**{**values, **changes})


def figures(*requests: ServedRequest, slo: Slo | None = None, new: int = 3, forced: bool = True, cpu_s: float = 0.1) -> dict[str, Any]:
    client = ClientCost(cpu_s, 1.0)
    return serving(requests, slo=slo or Slo(), new_tokens=new, prompt_tokens=16, client=client, api="openai", forced=forced)


def test_the_times_of_a_request() -> None:
    one = asked((1.5, 1), (1.75, 1), (2.0, 1), due=1.0)
    assert (one.ttft_ms, one.e2e_ms, one.tpot_ms) == (500, 1000, 250)
    assert list(one.itl_ms()) == [250, 250]


def test_itl_is_a_token_and_not_a_chunk() -> None:
    one = asked((1.0, 1), (1.4, 4), (1.5, 1))
    assert list(one.itl_ms()) == pytest.approx([100] * 5)
    assert one.tpot_ms == pytest.approx(100)
    found = figures(one, new=6)
    assert found["itl"]["count"] == 5
    assert found["itl"]["max"] == pytest.approx(100)


def test_tokens_of_the_first_chunk_have_no_time_between_them() -> None:
    one = asked((1.0, 3), (1.2, 2))
    assert list(one.itl_ms()) == pytest.approx([100, 100])
    assert one.tpot_ms == pytest.approx(100)
    assert asked((1.0, 3)).tpot_ms is None


def test_chunks_that_say_nothing_count_where_the_total_agrees() -> None:
    agreed = asked((1.0, None), (1.1, None), (1.2, None), total=3)
    assert list(agreed.itl_ms()) == pytest.approx([100, 100])
    glued = asked((1.0, None), (1.2, None), total=3)
    assert glued.tokens is None
    assert glued.tpot_ms == pytest.approx(100)  # by the server's total
    found = figures(agreed, glued)
    assert found["itl"] is None
    assert "1 of 2 streams" in found["notes"][0]
    glued_in_one_piece = ServedRequest(due_s=0, sent_s=0, ended_s=2, arrivals=(Arrival(1.0, None), Arrival(1.2, None, 2)), total=3)
    assert list(glued_in_one_piece.itl_ms()) == pytest.approx([100, 100])


def test_a_count_that_contradicts_the_servers_is_none() -> None:
    assert asked((1.0, 1), (1.1, 1), total=5).tokens is None


def test_failed_requests_are_counted_apart_and_in_no_statistic() -> None:
    failed = asked((9.0, 1), (99.0, 1), failure=("server", "no"), ended_s=2.0)
    found = figures(asked((1.0, 1), (2.0, 2)), failed, asked(due=1.0, failure=("timeout", "late"), ended_s=2.0))
    assert (found["served"], found["failed"], found["failures"]) == (1, 2, {"server": 1, "timeout": 1})
    assert found["ttft"]["samples"] == [1000]
    assert found["requests_s"] == pytest.approx(1 / 2)
    assert found["output_tok_s"] == pytest.approx(3 / 2)


def test_goodput_is_of_what_kept_the_slo() -> None:
    quick, slow, single = asked((0.1, 1), (0.2, 2)), asked((0.1, 1), (2.0, 2)), asked((0.1, 1))
    late, failed = asked((1.0, 1), (1.1, 2)), asked(failure=("server", "no"), ended_s=1.0)
    found = figures(quick, slow, single, late, failed, slo=Slo(ttft_ms=500, tpot_ms=100))
    assert found["goodput"] == pytest.approx(2 / 2.0)
    assert found["goodput_share"] == pytest.approx(2 / 5)
    assert figures(quick)["goodput"] is None
    assert figures(quick, slow, slo=Slo(tpot_ms=100))["goodput_share"] == 0.5


def test_lengths_that_differ_are_said_with_the_reason() -> None:
    requests = [asked((1.0, 1), (1.1, 1)), asked((1.0, 1))]
    assert "answers have 1 to 2 tokens, not 3, as its API cannot" in figures(*requests, forced=False)["notes"][0]
    assert "though it was told" in figures(*requests)["notes"][0]
    assert "prompts have 5 to 5 tokens" in figures(asked((1.0, 3), prompt_tokens=5))["notes"][0]
    assert figures(asked((1.0, 3)))["notes"] == []


def test_a_client_that_binds_says_so() -> None:
    busy = figures(asked((1.0, 3)), cpu_s=0.9)
    assert busy["client"]["bound"]
    assert busy["client"]["cpu_share"] == pytest.approx(0.9)
    assert "90% of a core" in busy["notes"][0]
    late = figures(asked((1.0, 3), late=0.05))
    assert late["client"]["bound"]
    assert late["ttft"]["samples"] == [1000]  # from when it was due
    assert "50 ms late" in late["notes"][0]
    assert not figures(asked((1.0, 3)))["client"]["bound"]


def test_nothing_served_has_no_figures() -> None:
    with pytest.raises(ValueError, match="none of the requests"):
        figures(asked(failure=("server", "no")))


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(1, 5)), min_size=2, max_size=30))
def test_gaps_add_up_to_the_time_after_the_first_token(steps: list[tuple[float, int]]) -> None:
    at, arrivals = 0.0, []
    for gap, tokens in steps:
        at += gap
        arrivals.append((at, tokens))
    one = asked(*arrivals)
    gaps = list(one.itl_ms())
    assert len(gaps) == sum(tokens for _, tokens in steps[1:])
    assert one.ttft_ms + sum(gaps) == pytest.approx(one.e2e_ms)
    assert one.tpot_ms == pytest.approx(sum(gaps) / len(gaps))
