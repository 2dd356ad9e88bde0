"""How large a case is: weights, cache and hidden states, as FlexGen's report counts them."""

from __future__ import annotations

from inferometer.bench.backends.registry import stack_of
from inferometer.bench.records.case import Case
from inferometer.estimate.stack import find_stack
from inferometer.model.footprint import resident_weight_bytes
from inferometer.model.formats import Formats, kv_bytes_per_token
from inferometer.model.spec import ModelSpec


def sizes(case: Case, spec: ModelSpec) -> dict[str, int]:
    """Bytes. model: all weights. cache: keys and values of all rows when all is generated. hidden: the states of as many tokens, once."""
    stack = stack_of(case.backend)
    # What a server's weights are in, it does not say.
    weights = None if case.quantize is None or stack is None else find_stack(stack).weights(case.quantize, case.dtype)
    formats = Formats(dtype=case.dtype, weights=weights, kv_dtype=case.kv_dtype)
    tokens = case.batch_size * case.row_tokens
    cache = 0 if case.decode_length is None else tokens * kv_bytes_per_token(spec, formats)
    return {"model": resident_weight_bytes(spec, formats), "cache": cache, "hidden": tokens * spec.hidden * formats.item_bytes}
