"""The tokens of a step on their way to the host."""

from __future__ import annotations

import pytest
import torch

from inferometer.engine.sampled import Sampled
from inferometer.nn.upload import upload

CPU = torch.device("cpu")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
devices = pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=gpu)])


def sampled(device: torch.device, counts: tuple[int, ...], most: int) -> Sampled:
    rows = len(counts)
    token_ids = torch.arange(rows, device=device) + 2**40
    logprobs = -torch.arange(rows, device=device) / 3
    ids = torch.arange(rows * most, device=device).view(rows, most)
    tops = (ids, -(ids / 7)) if any(counts) else (None, None)
    return Sampled(token_ids, logprobs, *tops, counts)


@devices
@pytest.mark.parametrize(("counts", "most"), [((), 0), ((0,), 0), ((0, 0, 0), 0), ((2,), 2), ((3, 0, 1), 3), ((0, 1), 1)])
def test_the_host_reads_what_the_device_holds(name: str, counts: tuple[int, ...], most: int) -> None:
    there = sampled(torch.device(name), counts, most)
    read = there.fetch().read()
    assert read.token_ids == there.token_ids.tolist()
    assert read.logprobs == there.logprobs.tolist()
    pairs = (
        [[] for _ in counts]
        if there.top_ids is None or there.top_logprobs is None
        else [list(zip(ids, xs, strict=True)) for ids, xs in zip(there.top_ids.tolist(), there.top_logprobs.tolist(), strict=True)]
    )
    assert read.tops == there.tops() == [tuple(row[:count]) for row, count in zip(pairs, counts, strict=True)]


@devices
def test_what_was_fetched_is_what_was_there_then(name: str) -> None:
    there = sampled(torch.device(name), (1, 1), 1)
    expected, fetched = there.fetch().read(), there.fetch()
    for tensor in (there.token_ids, there.logprobs, there.top_ids):
        assert tensor is not None
        tensor.zero_()
    assert fetched.read() == fetched.read() == expected


@devices
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2, 3], torch.int64),
        ([[0.5, 1e30]], torch.float32),
        ([], torch.int32),
        (torch.arange(6).view(2, 3).t(), torch.int32),
        (torch.zeros(0, 4), torch.float64),
    ],
)
def test_an_upload_is_the_same_numbers_on_the_device(name: str, values: list[float] | torch.Tensor, dtype: torch.dtype) -> None:
    device = torch.device(name)
    there = upload(values, dtype, device)
    assert (there.dtype, there.device.type) == (dtype, name)
    assert torch.equal(there.cpu(), torch.as_tensor(values).to(dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_read_waits_for_its_own_step_alone() -> None:
    device = torch.device("cuda")
    torch.cuda.synchronize()
    fetched = sampled(device, (0, 0), 0).fetch()
    torch.cuda._sleep(2_000_000_000)  # about a second
    after = torch.cuda.Event()
    after.record()
    assert fetched.read().token_ids == [2**40, 2**40 + 1]
    assert not after.query()
    torch.cuda.synchronize()
