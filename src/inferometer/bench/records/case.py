"""A case: one question that a benchmark answers, with everything that decides the answer and nothing about the effort spent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from inferometer.schedule.sampling import SamplingParams

SAMPLING: Final = ("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "watermark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model on a backend, with a workload. None means unset (the default of whatever takes it).

    A batch of `batch_size` prompts of `sequence_length` tokens, each continued by `decode_length` tokens whatever their content
    (end-of-sequence is ignored). With `forward_only`, one pass over the prompts that yields logits at every position, and with
    `loss` their mean next-token cross-entropy; `decode_length` is then None. With `decode_only` there is no prompt but a cache filled at
    random, and `decode_length` steps, the first of which attends over `sequence_length` tokens, its own among them.
    Of a server it is `requests` requests of one prompt each: `batch_size` at any time, or `request_rate` a second at random moments, in
    the words of `api`, held to the SLO.
    Raises ValueError for a workload that is none.
    """

    model: str
    backend: str
    dtype: str
    device: str | None
    device_name: str | None = None
    batch_size: int
    sequence_length: int
    decode_length: int | None
    weights: str = "auto"
    seed: int = 0
    quantize: str | None = None
    kv_dtype: str | None = None
    tensor_parallel: int = 1
    admission: str | None = None
    group_size: int | None = None
    num_groups: int | None = None
    offload: str | None = None
    percent: str | None = None
    host_memory_limit: int | None = None
    disk: bool = False
    memory_limit: int | None = None
    deterministic: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    watermark: bool = False
    do_sample: bool = False
    forward_only: bool = False
    loss: bool = False
    decode_only: bool = False
    request_rate: float | None = None
    requests: int | None = None
    api: str | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "sequence_length", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.forward_only != (self.decode_length is None):
            raise ValueError("a case has a decode length exactly when it is not forward_only")
        if self.decode_length is not None and self.decode_length < 1:
            raise ValueError(f"decode_length must be at least 1, not {self.decode_length}")
        if self.decode_only and (self.forward_only or self.sequence_length < 2):
            raise ValueError("decode_only has steps over a context of at least 2 tokens, and no forward")
        if self.request_rate is not None and not self.request_rate > 0:
            raise ValueError(f"request_rate must be above 0, not {self.request_rate}")
        if self.loss and not self.forward_only:
            raise ValueError("loss goes with forward_only")

    @property
    def case_id(self) -> str:
        """Sixteen hexadecimal digits that name the question: equal in every process, and unchanged by a new option left unset."""
        asked = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def steps(self) -> int:
        """Decode steps after the prefill, whose forward already gives the first token; all of a case without one."""
        return 0 if self.decode_length is None else self.decode_length - (not self.decode_only)

    @property
    def prompt_length(self) -> int:
        """Tokens of each prompt. Of a context that a step attends over, the step's own is none."""
        return self.sequence_length - self.decode_only

    @property
    def row_tokens(self) -> int:
        """Tokens of a row when all is generated, the last of which is never run."""
        return self.sequence_length + (self.decode_length or 0)

    @property
    def asked(self) -> dict[str, Any]:
        """What a record says of the question, by the record's names."""
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in SAMPLING}
        return {**settings, "case_id": self.case_id, "sampling": {name: getattr(self, name) for name in SAMPLING}}

    def sampling_params(self) -> SamplingParams:
        """The parameters of each request; raises UserError where a sampling option is out of range."""
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty")}
        return SamplingParams(
            max_new_tokens=self.steps + 1,
            ignore_eos=True,
            seed=self.seed,
            do_sample=self.do_sample,
            watermark=self.watermark,
            **{name: value for name, value in given.items() if value is not None},
        )
