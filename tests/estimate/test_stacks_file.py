"""The stacks: those that must be there, what may be changed of one, and where every constant came from."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from inferometer.errors import UserError
from inferometer.estimate.fitted import FITTED, fitted
from inferometer.estimate.measured import load_regimes
from inferometer.estimate.predict import MEMORY_CONSTANTS, POWER_CONSTANTS
from inferometer.estimate.stack import CONSTANTS, STACKS, find_stack

ISSUES_STACKS = {
    "native", "hf-eager", "hf-compile", "torch-eager-forward", "deepspeed", "tgi", "fastertransformer", "flexgen", "eet", "lightseq",
    "vllm", "llamacpp", "gpt-fast",
}  # fmt: skip


def _lines(name: str) -> list[str]:
    return files("inferometer.estimate").joinpath(name).read_text("utf-8").splitlines()


def test_every_constant_has_its_source_beside_it() -> None:
    found = [line for line in _lines("stacks.toml") if (match := re.match(r"(\w+) = ", line)) and match[1] in CONSTANTS]
    assert len(found) > 50
    assert [line for line in found if not re.search(r"  # \w.{2,}", line)] == []


def test_stacks_differ_and_their_constants_are_sane() -> None:
    for stack in STACKS.values():
        for name in CONSTANTS:
            value = getattr(stack, name)
            assert value >= 0
            if name in ("matmul_share", "attention_share", "memory_share"):
                assert 0.3 < value <= 1
        filled = stack.verify.format(model="m", gguf="m.gguf", batch=1, prompt=2, new=3, dtype="float16", gpus=4)
        assert "{" not in filled
    assert len({stack.about for stack in STACKS.values()}) == len(STACKS)


def test_what_a_regime_fits_is_a_constant() -> None:
    regimes = [match[1] for line in _lines(FITTED) if (match := re.match(r'\["?([^"\]]+)"?\]', line))]
    assert regimes
    for regime in regimes:
        assert regime in load_regimes()
        ranges = fitted(regime)
        assert 0 < len(ranges) <= 5
        assert set(ranges) <= {*CONSTANTS, *POWER_CONSTANTS, *MEMORY_CONSTANTS}
    assert fitted("001-memory-1gpu") == {}


def test_every_stack_of_the_contract_is_there() -> None:
    assert set(STACKS) >= ISSUES_STACKS
    with pytest.raises(UserError, match="did you mean vllm"):
        find_stack("vlm")


def test_constants_can_be_replaced_and_only_they() -> None:
    stack = find_stack("vllm").with_constants({"step_s": 1.0})
    assert (stack.step_s, stack.kernel_s) == (1.0, find_stack("vllm").kernel_s)
    assert {"matmul_share", "launch_s", "sorting_bytes"} <= set(CONSTANTS)
    for name in ("page_size", "nonsense"):
        with pytest.raises(KeyError):
            stack.with_constants({name: 1.0})
