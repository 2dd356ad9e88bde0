"""What a benchmark is asked for, and whether it can be done at all; without torch, so that a refusal is quick."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from inferometer.bench.backends.registry import entry
from inferometer.bench.records.case import Case
from inferometer.errors import UserError
from inferometer.model.formats import full_name, kv_format
from inferometer.model.offload import read_offload
from inferometer.model.shard import check_shards
from inferometer.model.spec import ModelSpec
from inferometer.schedule.admission import Admission
from inferometer.schedule.admission import admission as admission_of

DECODE_LENGTH: Final = 8
"""Tokens to generate for each sequence, where nothing else is asked."""

TUNING_SECONDS: Final = 60.0
"""After which no launch of a model's kernels is measured any more for a case, where none is on file."""

Api = Literal["tgi", "openai"]
APIS: Final[tuple[Api, ...]] = ("tgi", "openai")
"""What a server may speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """Cases at several batch sizes. Names are those of the command line; None is unset. `gpu_memory` and `host_memory` are in GiB.

    With `decode_only` a sequence length is a context that decode steps attend over; `contexts` are several of them.
    Of a server at `url`, a batch size is so many requests at a time; `request_rate` (a second), `requests`, `request_timeout` (seconds)
    and the SLO are its alone.
    """

    model: str | None
    batch_sizes: tuple[int, ...]
    sequence_length: int = 10
    decode_length: int | None = None
    runs: int = 10
    warmups: int = 1
    energy: bool = True
    tuning_seconds: float = TUNING_SECONDS
    backends: tuple[str, ...] = ("native",)
    forward_only: bool = False
    loss: bool = False
    decode_only: bool = False
    contexts: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    watermark: bool = False
    weights: str = "auto"
    tokenizer: str | None = None
    dtype: str = "auto"
    quantize: str | None = None
    kv_dtype: str = "auto"
    tensor_parallel: int = 1
    device: str = "auto"
    gpu_memory: float | None = None
    deterministic: bool = False
    admission: str | None = None
    group_size: int | None = None
    num_groups: int | None = None
    offload: str | None = None
    percent: tuple[int, ...] | None = None
    host_memory: float | None = None
    disk: str | None = None
    seed: int = 0
    url: str | None = None
    api: str = "auto"
    request_rate: float | None = None
    requests: int | None = None
    request_timeout: float = 600.0
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None

    def check(self) -> None:
        """Raises UserError for what no model could do."""
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise UserError(f"--batch-size must be at least 1, not {min(self.batch_sizes, default='missing')}")
        for flag, value, least in (
            ("--sequence-length", self.sequence_length, 1),
            ("--decode-length", self.new_tokens, 1),
            ("--runs", self.runs, 1),
            ("--warmups", self.warmups, 0),
            ("--tensor-parallel", self.tensor_parallel, 1),
        ):
            if value < least:
                raise UserError(f"{flag} must be at least {least}, not {value}")
        if not 0 <= self.tuning_seconds < inf:
            raise UserError(f"--tuning-seconds must be a number of seconds, 0 for none, not {self.tuning_seconds:g}")
        if not self.backends:
            raise UserError("--backend names no stack; use --backend native")
        if self.contexts and not self.decode_only:
            raise UserError("contexts are of decode steps alone; set decode_only")
        if self.decode_only and min(self.contexts or (self.sequence_length,)) < 2:
            raise UserError("--decode-at must be at least 2: a context is a step's own token and those before it")
        for given, flag in ((self.forward_only, "--forward-only"), (self.admission is not None, "--admission")):
            if self.decode_only and given:
                raise UserError(f"{flag} means nothing to --decode-at, which has decode steps alone; leave one of them out")
        if self.forward_only and self.decode_length is not None:
            raise UserError("--decode-length is how many tokens a model generates, which --forward-only does not; leave it out")
        if self.loss and not self.forward_only:
            raise UserError("--loss is that of one forward pass; add --forward-only")
        if self.loss and self.sequence_length < 2:
            raise UserError("--loss predicts each token from those before it; use --sequence-length 2 or more")
        kv_format(self.kv_dtype)
        self.order()
        self._check_offload()
        self._check_server()
        self.check_backends()
        if self.admission is not None and self.forward_only:
            raise UserError("--admission orders prefill and decode, and --forward-only has neither; leave one of them out")

    def _check_offload(self) -> None:
        read_offload(self.offload, self.percent)
        given = {"--offload": self.offload, "--percent": self.percent, "--host-memory": self.host_memory, "--disk": self.disk}
        for flag, value in given.items():
            if value is not None and set(self.backends) != {"native"}:
                raise UserError(f"{flag} is run by --backend native alone; measure the others by themselves")

    def _check_server(self) -> None:
        served = any(not entry(name).in_process for name in self.backends)
        of_a_server = {
            "--url": self.url,
            "--request-rate": self.request_rate,
            "--requests": self.requests,
            "--slo-ttft": self.slo_ttft_ms,
            "--slo-tpot": self.slo_tpot_ms,
            "--api": None if self.api == "auto" else self.api,
        }
        for flag, value in of_a_server.items():
            if value is not None and not served:
                raise UserError(f"{flag} is of a server; add --backend http")
            if isinstance(value, int | float) and not 0 < value < inf:
                raise UserError(f"{flag} must be a number above 0, not {value}")
        if served and self.url is None:
            raise UserError("--backend http measures a server; add --url http://HOST:PORT")
        if served and len(self.backends) > 1:
            raise UserError("--backend http measures a server in its own time; run the other backends by themselves")
        if self.api not in ("auto", *APIS):
            raise UserError(f"--api {self.api} is unknown; use auto, {' or '.join(APIS)}")
        if not 0 < self.request_timeout < inf:
            raise UserError(f"--request-timeout must be a number of seconds above 0, not {self.request_timeout}")

    def check_backends(self, *, spec: ModelSpec | None = None, device: str | None = None, rounded: bool = False) -> None:
        """Raises UserError for what a backend does not run: of any model, or of this one on "cpu" or "cuda"; rounded: see `refusal`."""
        for name in self.backends:
            reason = entry(name).refusal(self, spec=spec, device=device, rounded=rounded)
            if reason is not None:
                raise UserError(reason)

    @property
    def new_tokens(self) -> int:
        """Tokens to generate for each sequence, of a model and a case that generate."""
        return DECODE_LENGTH if self.decode_length is None else self.decode_length

    @property
    def samples(self) -> bool:
        """Whether anything but the likeliest token may be asked for."""
        options = (self.temperature, self.top_k, self.top_p, self.typical_p, self.repetition_penalty)
        return self.do_sample or any(option is not None for option in options)

    def order(self) -> Admission | None:
        """The admission asked for; None for the bench's own, under which all rows of a batch prefill and then decode together.

        Raises UserError for settings that mean nothing.
        """
        if self.admission is not None:
            return admission_of(self.admission, self.group_size, self.num_groups)
        for flag, value in (("--group-size", self.group_size), ("--num-groups", self.num_groups)):
            if value is not None:
                raise UserError(f"{flag} goes with an admission by groups; add --admission zigzag or diagonal")
        return None

    def check_model(self, spec: ModelSpec) -> None:
        """Raises UserError for what this model cannot do."""
        if spec.encoder and self.loss:
            raise UserError(f"--loss needs next-token logits, and {spec.name} is an encoder; leave --loss out")
        if spec.encoder and self.decode_only:
            raise UserError(f"--decode-at needs a decoder, and {spec.name} is an encoder; leave --decode-at out")
        if spec.encoder and self.admission is not None:
            raise UserError(f"--admission orders prefill and decode, and {spec.name} is an encoder; leave --admission out")
        if spec.encoder and self.decode_length is not None:
            raise UserError(f"--decode-length is how many tokens a model generates, and {spec.name} is an encoder; leave it out")
        if self.tensor_parallel > 1:
            check_shards(spec, self.tensor_parallel)
        self.check_backends(spec=spec)
        forward_only = self.forward_only or spec.encoder
        length = max(self._lengths)
        tokens = length if forward_only else length + self.new_tokens
        asked = f"--decode-at {length}" if self.decode_only else f"--sequence-length {length}"
        asked += " makes" if forward_only else f" and --decode-length {self.new_tokens} make"
        limits = {"positions": spec.context_limit, "tokens in its sliding window": spec.sliding_window}
        for what, limit in limits.items():
            if limit is not None and tokens > limit:
                raise UserError(f"{asked} {tokens} tokens, but {spec.name} has {limit} {what}; use shorter ones")

    def rounds(self, spec: ModelSpec, *, dtype: str, device: str | None, device_name: str | None) -> list[list[Case]]:
        """The cases: for each batch size in the order given, and each context, one for each backend."""
        forward_only = self.forward_only or spec.encoder
        # Its default is part of the question.
        group_size = getattr(self.order(), "group_size", None)
        return [
            [
                Case(
                    model=spec.name,
                    backend=backend,
                    dtype=dtype,
                    device=device,
                    device_name=device_name,
                    batch_size=batch_size,
                    sequence_length=length,
                    decode_length=None if forward_only else self.new_tokens,
                    weights=self.weights,
                    seed=self.seed,
                    quantize=None if self.quantize is None else full_name(self.quantize),
                    kv_dtype=None if self.kv_dtype == "auto" else self.kv_dtype,
                    tensor_parallel=self.tensor_parallel,
                    admission=self.admission,
                    group_size=group_size,
                    num_groups=self.num_groups,
                    offload=self.offload,
                    percent=None if self.percent is None else " ".join(map(str, self.percent)),
                    host_memory_limit=None if self.host_memory is None else int(self.host_memory * 2**30),
                    disk=self.disk is not None,
                    memory_limit=self.memory_limit,
                    deterministic=self.deterministic,
                    temperature=self.temperature,
                    top_k=self.top_k,
                    top_p=self.top_p,
                    typical_p=self.typical_p,
                    repetition_penalty=self.repetition_penalty,
                    watermark=self.watermark,
                    do_sample=self.do_sample,
                    forward_only=forward_only,
                    loss=self.loss,
                    decode_only=self.decode_only,
                )
                for backend in self.backends
            ]
            for batch_size in self.batch_sizes
            for length in self._lengths
        ]

    @property
    def _lengths(self) -> tuple[int, ...]:
        return self.contexts or (self.sequence_length,)

    @property
    def memory_limit(self) -> int | None:
        """`gpu_memory` in bytes."""
        return None if self.gpu_memory is None else int(self.gpu_memory * 2**30)
