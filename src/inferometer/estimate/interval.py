"""Between which values a measurement is expected, from how predictions of the same kind did on rows that were not fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from inferometer.errors import UserError
from inferometer.estimate.deviation import load_deviations
from inferometer.estimate.limits import LimitsBasis
from inferometer.estimate.measured import load_regimes, load_rows
from inferometer.estimate.request import Request

# Which regime's held-out rows tell how far a stack's times are off; the others have none of their own.
_TIMES = {
    "torch-eager-forward": "001-runtime-1gpu",
    "tgi": "002",
    "eet": "003",
    "hf-eager": "own-studies-hf",
    "deepspeed": "own-studies-deepspeed",
    "flexgen": "000-latency",
    "fastertransformer": "fastertransformer",
    "vllm": "mlenergy-itl",
    "native": "own-studies-prompts",
}
_DECODE = {"native": "own-studies-decode"}
_EXPOSED = {
    "native": "own-studies-exposed",
    "hf-eager": "own-studies-hf-exposed",
    "deepspeed": "own-studies-deepspeed-exposed",
}
"""Of decode steps, and of all others in which the host has a say (`Cost.exposed`), where they have a regime of their own."""
_ENERGY = "mlenergy"
# Factors where no regime tells: on measured limits what is left is the stack's overhead; a datasheet adds what the shapes of its products
# do; an assumed processor may be another.
_UNKNOWN: Mapping[LimitsBasis, tuple[float, float]] = {"calibrated": (0.75, 1.4), "datasheet": (0.65, 1.6), "assumed": (0.3, 4.0)}
# Rows further off than this on average are of something else than what is predicted, as those of an engine that has changed since.
_OUTDATED = 0.25
# A card that the regime has no rows of: NeuSight and BLIS are two to three times as far off on cards that they have not seen. So it is
# taken to be with a format of weights that it has none of.
_UNSEEN = 2.0
# Allocators round and keep fragments; tensors are counted one by one.
MEMORY_FACTORS = (0.97, 1.06)
_POWER_FACTORS = (0.7, 1.35)
_AND = " and "


@dataclass(frozen=True, slots=True)
class Factors:
    """low, high: what measured over predicted is expected to lie between. source: what says so. remark: what is to be known of that."""

    low: float
    high: float
    source: str
    remark: str = ""

    @property
    def words(self) -> str:
        """Source and remark."""
        return f"{self.source} ({self.remark})" if self.remark else self.source

    def around(self, predicted: float, least: float) -> tuple[float, float]:
        """Between which values a measurement is expected; none below `least`."""
        return max(self.low * predicted, min(least, predicted)), self.high * predicted


def together(parts: Sequence[tuple[float, Factors]]) -> Factors:
    """Of a sum of predictions with factors of their own, all of which may be off alike. Raises ValueError for no parts."""
    whole = sum(predicted for predicted, _ in parts)
    if not whole:
        raise ValueError("a sum has parts")
    low, high = (
        sum(predicted * factor for predicted, factor in ends) / whole
        for ends in ([(predicted, each.low) for predicted, each in parts], [(predicted, each.high) for predicted, each in parts])
    )
    sources, remarks = (dict.fromkeys(told) for told in zip(*((each.source, each.remark) for _, each in parts), strict=True))
    if len(remarks) > 1:  # each is of its own source
        return Factors(low, high, _once(each.words for _, each in parts))
    return Factors(low, high, _once(sources), *remarks)


def _once(sources: Iterable[str]) -> str:
    """Each source once, of which some are several already."""
    return _AND.join(dict.fromkeys(chain.from_iterable(source.split(_AND) for source in sources)))


def between(first: Factors, second: Factors, share: float) -> Factors:
    """Of a prediction that is partly of the first kind, partly of the second, of which it has so large a share."""
    if share in (0.0, 1.0) or first == second:
        return second if share == 1.0 else first
    low, high = (one ** (1 - share) * other**share for one, other in ((first.low, second.low), (first.high, second.high)))
    if first.remark == second.remark:
        return Factors(low, high, _once((first.source, second.source)), first.remark)
    return Factors(low, high, _once((first.words, second.words)))


def time_factors(request: Request, basis: LimitsBasis, *, decodes: bool, exposed: float) -> Factors:
    """For times of this request, of its decode steps or of what comes before. exposed: see `Cost.exposed_share`."""
    decided, waits = (_time_factors(request, basis, decodes=decodes, regimes=regimes) for regimes in (_TIMES, {**_TIMES, **_EXPOSED}))
    return between(decided, waits, exposed)


def _time_factors(request: Request, basis: LimitsBasis, *, decodes: bool, regimes: Mapping[str, str]) -> Factors:
    stack = request.stack.name
    regime = regimes.get(stack)
    if decodes:
        regime = _DECODE.get(stack, regime)
    if request.layout.parallel == "mlp-tensor" and request.layout.devices > 1:
        regime = "001-runtime-8gpu"
    found = _held_out(regime, request.device.slug, _narrow(request)) if regime is not None and basis != "assumed" else None
    if found is not None:
        return found
    low, high = _UNKNOWN[basis]
    return Factors(low, high, f"judged, no held-out rows of {stack} telling")


def energy_factors(request: Request, basis: LimitsBasis, times: Factors) -> Factors:
    """For joules of this request: the times' factors, and those of power where no energy was measured with the stack."""
    if request.stack.name == "vllm":
        found = _held_out(_ENERGY, request.device.slug, _narrow(request))
        if found is not None:
            return found
    return Factors(times.low * _POWER_FACTORS[0], times.high * _POWER_FACTORS[1], f"{times.words}; power judged")


def _narrow(request: Request) -> str | None:
    """What a checkpoint's weights are in that no engine of this product runs, None for others."""
    return request.formats.matrices.element if request.stored and request.published is not None else None


@cache
def _held_out(regime: str, slug: str, narrow: str | None) -> Factors | None:
    deviation = load_deviations().get(regime)
    if deviation is None or deviation.mean > _OUTDATED:
        return None
    try:
        rows = load_rows(regime)
    except UserError:
        return None
    # A measurement may always lie on either side of a prediction, though all that are known lie on one.
    low, high = min(deviation.low, 1 / (1 + deviation.mean)), max(deviation.high, 1 + deviation.mean)
    seen = load_regimes()[regime].read_off
    held_out = "" if seen else "held-out "
    source = f"{deviation.rows} {held_out}rows of regime {regime}"
    remarks = ["constants were read off some of them"] if seen else []
    unseen = [] if any(row.device == slug for row in rows) else ["of this card"]
    unseen += [] if narrow is None or any(row.quantize == narrow for row in rows) else [f"of weights in {narrow}"]
    if unseen:
        low, high = low**_UNSEEN, high**_UNSEEN
        remarks.append(f"none is {' or '.join(unseen)}, so how far they were off is squared")
    return Factors(low, high, source, "; ".join(remarks))
