"""How large a server's sweeps are, by where it runs."""

from __future__ import annotations

import pytest

from inferometer.schedule.continuous import Continuous
from inferometer.server.server_sweeps import ALONE_TOKENS, PROMPT_TOKENS, ServerSweeps


@pytest.mark.parametrize("seats", [1, 8, 256, 1000])
def test_on_a_gpu_prompts_have_their_tokens_beside_a_full_batch(seats: int) -> None:
    sweeps = ServerSweeps.on_gpu(seats, None)
    assert sweeps.tokens >= max(ALONE_TOKENS, PROMPT_TOKENS + seats)
    assert sweeps.admission.prompt_tokens == PROMPT_TOKENS


def test_where_weights_come_in_prompts_are_as_long_as_that_takes() -> None:
    sweeps = ServerSweeps.on_gpu(256, 8000)
    assert (sweeps.tokens, sweeps.admission.prompt_tokens) == (8256, 8000)
    assert ServerSweeps.on_gpu(256, 1).admission.prompt_tokens == PROMPT_TOKENS


def test_on_a_cpu_sweeps_are_short_in_all() -> None:
    assert ServerSweeps.on_cpu(32) == ServerSweeps(PROMPT_TOKENS, Continuous(prompt_tokens=32))
