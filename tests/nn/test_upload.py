"""Numbers on their way to a GPU: the same in pinned memory, whatever their type and shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferometer.nn import upload


@pytest.mark.parametrize(
    "host",
    [
        torch.arange(6).view(2, 3),
        torch.arange(6).view(2, 3).t(),
        torch.arange(10)[3::3],
        torch.zeros(0, 4),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.arange(40_000, dtype=torch.int64),
    ],
)
def test_a_pinned_copy_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch, host: torch.Tensor) -> None:
    """Memory without a GPU cannot be pinned: what is asked for is noted, and left out."""
    asked: list[bool] = []
    empty = torch.empty

    def unpinned(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*sizes, **options)

    monkeypatch.setattr(torch, "empty", unpinned)
    before = host.clone()
    held = upload.pinned(host)
    assert asked == [True]
    assert held.dtype == host.dtype
    assert torch.equal(held, before)
    held.zero_()
    assert torch.equal(host, before)
