from __future__ import annotations

import math

import pytest
import torch
from fake_backend import FakeBackend

from inferometer.bench.backends.backend import Continuation, Prompts
from inferometer.bench.measurement.check import ReferenceFailedError, check, relative_error
from inferometer.bench.records.record import Checked

PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]


def outcome(backend: FakeBackend, reference: FakeBackend | None = None, *, steps: int = 3, loss: bool = False) -> Checked:
    return check(backend, reference, PROMPTS, dtype=torch.float32, steps=steps, loss=loss)


def test_equal_backends_pass() -> None:
    checked = outcome(FakeBackend(), FakeBackend("hf"), loss=True)
    assert checked.passed
    assert checked.max_error is not None
    assert checked.max_error < 1e-6
    assert "hf 1" in checked.method
    assert "loss" in checked.method


def test_the_cached_path_is_held_against_the_forward() -> None:
    checked = outcome(FakeBackend())
    assert checked.passed
    assert checked.method == "3 cached decode tokens against itself through a forward without a cache"


@pytest.mark.parametrize("error", [0.1, -0.1, math.nan, math.inf])
def test_logits_that_differ_fail(error: float) -> None:
    checked = outcome(FakeBackend(error=error), FakeBackend("hf"), steps=0)
    assert not checked.passed
    assert (checked.max_error is None) == (not math.isfinite(error))


def test_a_cache_that_differs_fails_against_either_reference() -> None:
    for reference in (None, FakeBackend("hf")):
        checked = outcome(FakeBackend(drift=0.1), reference)
        assert not checked.passed
        assert outcome(FakeBackend(drift=0.1), reference, steps=0).passed if reference else True


def test_a_token_that_is_not_the_best_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # A large drift makes token 7 win everywhere; its log-probability is then told rightly, so only the choice is wrong.
    backend = FakeBackend(drift=50.0)
    honest = FakeBackend()
    wrong = backend.continuation(PROMPTS, 2)
    logits = honest.logits([[*p, *t[:-1]] for p, t in zip(PROMPTS, wrong.tokens, strict=True)], last_only=False)[:, -2:].log_softmax(2)
    told = tuple(tuple(float(logits[r, s, t]) for s, t in enumerate(row)) for r, row in enumerate(wrong.tokens))
    monkeypatch.setattr(honest, "continuation", lambda prompts, steps: type(wrong)(wrong.tokens, told))
    assert not outcome(honest, steps=2).passed


def test_a_wrong_loss_fails() -> None:
    assert outcome(FakeBackend(), steps=0, loss=True).passed
    assert not outcome(FakeBackend(drift=0.01), steps=0, loss=True).passed


def test_an_encoder_alone_is_checked_in_a_batch() -> None:
    checked = outcome(FakeBackend(encoder=True), steps=0)
    assert checked.passed
    assert checked.method == "rows of a batch against itself alone"
    assert not outcome(FakeBackend(encoder=True, drift=0.1), steps=0).passed


def test_a_reference_that_fails_is_no_verdict() -> None:
    def fail(what: str, rows: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(ReferenceFailedError, match="out of memory"):
        outcome(FakeBackend(), FakeBackend("hf", fail=fail))


def test_a_backend_that_fails_is_its_own_failure() -> None:
    def fail(what: str, rows: int) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        outcome(FakeBackend(fail=fail), FakeBackend("hf"))


def test_outputs_of_other_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.zeros(2), torch.zeros(3))


def test_the_error_is_relative_to_the_largest_value() -> None:
    ours, theirs = torch.tensor([1.0, 50.5]), torch.tensor([1.0, -100.0])
    assert relative_error(ours, theirs) == pytest.approx(1.505)
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0


def test_rows_from_all_over_the_batch_are_compared() -> None:
    """A group that goes wrong anywhere in it must not pass for its place."""
    prompts = [[row, 2, 3, 4, 5] for row in range(12)]

    class Wrong(FakeBackend):
        """Tells the wrong log-probabilities of one row."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self._row = row

        def continuation(self, prompts: Prompts, steps: int) -> Continuation:
            told = super().continuation(prompts, steps)
            rows = [[p - 50.0 for p in row] if place == self._row else row for place, row in enumerate(told.log_probabilities)]
            return Continuation(told.tokens, tuple(map(tuple, rows)))

    def passed(row: int, together: int) -> bool:
        return check(Wrong(row), None, prompts, dtype=torch.float32, steps=2, loss=False, together=together).passed

    assert [row for row in range(12) if not passed(row, 12)] == [0, 3, 7, 11]
    assert [row for row in range(12) if not passed(row, 1)] == [0, 1, 2, 3]
