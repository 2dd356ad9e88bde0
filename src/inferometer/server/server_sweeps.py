"""How large a server's sweeps are: a prompt that arrives delays the tokens of everybody who generates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from inferometer.schedule.continuous import Continuous
from inferometer.server.prompt_pace import prompt_tokens

if TYPE_CHECKING:
    from inferometer.engine.llm import LLM

PROMPT_TOKENS: Final = 384
"""Tokens of prompts in a sweep in which anyone decodes: on a large GPU so many cost twice what reading the weights costs, so that a step
beside a long prompt stays below three steps without one. (With 512, opt-6.7b on an H200 had steps of 5.6 ms alone and up to 17.1 beside a
prompt.) A size that sweeps are recorded for: a few less would cost as much. Not less where many decode, as a step without a prompt takes
longer then."""

ALONE_TOKENS: Final = 1024
"""Tokens of a sweep in which nobody decodes: a prompt of 512 in one piece instead of two comes a fifth sooner, and who arrives meanwhile
waits for no more than 21 ms (opt-6.7b on an H200, by the estimate)."""


@dataclass(frozen=True, slots=True)
class ServerSweeps:
    """tokens: the most of a sweep. admission: which requests run in it."""

    tokens: int
    admission: Continuous

    @classmethod
    def of(cls, llm: LLM, seats: int) -> Self:
        """For so many sequences, as far as --gpu-memory lets sweeps be."""
        if llm.device.type == "cpu":
            return cls.on_cpu(prompt_tokens(llm, PROMPT_TOKENS))
        sweeps = cls.on_gpu(seats, llm.prompts_beside)
        return replace(sweeps, tokens=max(PROMPT_TOKENS, min(sweeps.tokens, llm.sweep_tokens(sweeps.admission, seats))))

    @classmethod
    def on_cpu(cls, beside: int) -> Self:
        """Beside sequences that decode, prompts have so many tokens."""
        return cls(PROMPT_TOKENS, Continuous(prompt_tokens=beside))

    @classmethod
    def on_gpu(cls, seats: int, beside_the_link: int | None) -> Self:
        """beside_the_link: tokens of prompts that the device computes while weights come to it, if they do."""
        beside = max(PROMPT_TOKENS, beside_the_link or 0)
        return cls(max(ALONE_TOKENS, beside + seats), Continuous(prompt_tokens=beside))
