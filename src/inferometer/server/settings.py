"""What a server was asked to be: every setting, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inferometer.errors import UserError
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES
from inferometer.model.offload import read_offload
from inferometer.schedule.sampling import SEEDS

MAX_INPUT_LENGTH = 1000
MAX_TOTAL_TOKENS = 1512
"""text-generation-inference's defaults. A model of fewer positions lowers them, unless they were asked for."""
MASTER_PORT = 29500
MAX_BEST_OF = 2
"""Its default as well; fewer permits lower it."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server. None: not asked for, and found out at the start.

    max_input_length, max_total_tokens: tokens of a prompt, and of a prompt with what it may generate. max_batch_total_tokens: tokens
    that all running requests may hold together; None for what the memory holds. max_batch_size: most requests that run together.
    drain_seconds: how long open requests may go on after SIGTERM. queue_seconds: how long a request may wait for its turn.
    stall_seconds: after so long without a step while work is pending, the server calls itself unhealthy. client_seconds: how long a
    client may take to send the head of a request, to send its body, or to read on.
    payload_limit: most bytes of a request's body. gpu_memory: GiB on the device. offload: weights that come to it for as long as a layer
    runs; host_memory, disk: GiB and the folder that may hold them. master_addr, master_port: of this machine, where shards
    that the server starts meet; the default port stands for any that is free.
    Raises UserError, one line with the flag, for a value out of range and for limits that contradict each other.
    """

    model_id: str | None = None
    revision: str | None = None
    sharded: bool | None = None
    num_shard: int | None = None
    quantize: str | None = None
    trust_remote_code: bool = False
    max_concurrent_requests: int = 128
    max_best_of: int = MAX_BEST_OF
    max_stop_sequences: int = 4
    max_input_length: int | None = None
    max_total_tokens: int | None = None
    max_batch_size: int | None = None
    waiting_served_ratio: float = 1.2
    max_batch_total_tokens: int | None = None
    max_waiting_tokens: int = 20
    port: int = 3000
    shard_uds_path: str = "/tmp/text-generation-server"
    master_addr: str = "localhost"
    master_port: int = MASTER_PORT
    huggingface_hub_cache: str | None = None
    weights_cache_override: str | None = None
    disable_custom_kernels: bool = False
    json_output: bool = False
    otlp_endpoint: str | None = None
    cors_allow_origin: tuple[str, ...] = ()
    watermark_gamma: float = 0.5
    watermark_delta: float = 2.0
    hostname: str = "0.0.0.0"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    api_key: str | None = None
    weights: str = "auto"
    tokenizer: str | None = None
    drain_seconds: float = 90.0
    device: str = "auto"
    gpu_memory: float | None = None
    offload: str | None = None
    host_memory: float | None = None
    disk: str | None = None
    seed: int = 0
    validation_workers: int = 2
    max_top_n_tokens: int = 20
    payload_limit: int = 2_000_000
    queue_seconds: float = 300.0
    stall_seconds: float = 60.0
    client_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_concurrent_requests", "max_best_of", "max_waiting_tokens", "validation_workers", "payload_limit"):
            self._at_least(name, 1)
        for name in ("max_input_length", "max_total_tokens", "max_batch_size", "max_batch_total_tokens", "num_shard"):
            self._at_least(name, 1)
        for name in ("max_stop_sequences", "max_top_n_tokens", "port", "master_port", "drain_seconds", "seed", "waiting_served_ratio"):
            self._at_least(name, 0)
        for name in ("port", "master_port"):
            if getattr(self, name) > 65535:
                raise UserError(f"{flag(name)} must be at most 65535, not {getattr(self, name)}")
        for name in ("queue_seconds", "stall_seconds", "client_seconds", "gpu_memory", "host_memory"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{flag(name)} must be above 0, not {value}")
        for name in ("gpu_memory", "host_memory"):
            if getattr(self, name) == math.inf:
                raise UserError(f"{flag(name)} must be a number of GiB, not inf; leave it out to have what is free")
        if self.seed >= SEEDS:
            raise UserError(f"--seed must be below 2^64, not {self.seed}")
        if self.dtype != "auto" and DTYPE_ALIASES.get(self.dtype, self.dtype) not in COMPUTE_DTYPES:
            raise UserError(f"--dtype {self.dtype} is unknown; use auto, {', '.join(COMPUTE_DTYPES[:-1])} or {COMPUTE_DTYPES[-1]}")
        if read_offload(self.offload).pages:
            raise UserError("--offload pages is for batch jobs (inferometer generate --input): a server keeps its pages on the device")
        if not 0 <= self.watermark_gamma <= 1:
            raise UserError(f"--watermark-gamma must be from 0 to 1, not {self.watermark_gamma}")
        if not math.isfinite(self.watermark_delta):
            raise UserError(f"--watermark-delta must be a finite number, not {self.watermark_delta}")
        if self.api_key is not None and not self.api_key.strip():
            raise UserError("--api-key is empty: give a key, or leave it out to serve everybody")
        if self.max_best_of == MAX_BEST_OF > self.max_concurrent_requests:
            object.__setattr__(self, "max_best_of", self.max_concurrent_requests)
        if self.max_best_of > self.max_concurrent_requests:
            raise UserError(
                f"--max-best-of {self.max_best_of} is more than --max-concurrent-requests {self.max_concurrent_requests}: such a request "
                "could never run; lower the one or raise the other"
            )
        if self.sharded is True and self.num_shard == 1:
            raise UserError("--sharded true needs --num-shard of at least 2, not 1; leave --sharded out for one shard")
        self._check_lengths()

    @property
    def meeting_port(self) -> int:
        """Where shards that the server starts meet; 0 for any port that is free, as two servers would be at odds over a default."""
        return 0 if self.master_port == MASTER_PORT else self.master_port

    def fitted(self, context_limit: int | None) -> ServerSettings:
        """These settings for a model that can hold `context_limit` tokens (None: any number): no length is None any longer.

        Raises UserError where a length that was asked for is more than the model has.
        """
        most = math.inf if context_limit is None else context_limit
        if self.max_total_tokens is not None and self.max_total_tokens > most:
            raise UserError(
                f"--max-total-tokens {self.max_total_tokens} is more than the {context_limit} tokens that the model can hold; lower it"
            )
        total = self.max_total_tokens or int(min(MAX_TOTAL_TOKENS, most))
        # Only the model's own limit lowers a default: a limit that was asked for and does not agree with it is told.
        longest = self.max_input_length or int(min(MAX_INPUT_LENGTH, most - 1))
        return replace(self, max_total_tokens=total, max_input_length=longest)

    def fitted_to_embed(self, context_limit: int | None) -> ServerSettings:
        """As `fitted`, for an encoder, which generates nothing: a text may have all the tokens that the model can hold."""
        most = math.inf if context_limit is None else context_limit
        if self.max_input_length is not None and self.max_input_length > most:
            raise UserError(
                f"--max-input-length {self.max_input_length} is more than the {context_limit} tokens that the model can hold; lower it"
            )
        longest = self.max_input_length or context_limit or MAX_INPUT_LENGTH
        return replace(self, max_input_length=longest, max_total_tokens=max(self.total_tokens, longest + 1))

    @property
    def total_tokens(self) -> int:
        """max_total_tokens, or its default."""
        return self.max_total_tokens or MAX_TOTAL_TOKENS

    @property
    def input_length(self) -> int:
        """max_input_length, or its default."""
        return self.max_input_length or MAX_INPUT_LENGTH

    @property
    def batch_total_tokens(self) -> int | None:
        """Tokens that all running requests may hold together, by both flags; None for as many as there is memory for."""
        of_size = None if self.max_batch_size is None else self.max_batch_size * self.total_tokens
        return min((each for each in (of_size, self.max_batch_total_tokens) if each is not None), default=None)

    def _check_lengths(self) -> None:
        if (self.max_total_tokens is not None or self.max_input_length is not None) and self.input_length >= self.total_tokens:
            raise UserError(
                f"--max-input-length {self.input_length} must be below --max-total-tokens {self.total_tokens}, which counts what is "
                "generated as well; lower the first or raise the second"
            )
        budget = self.batch_total_tokens
        if budget is not None and budget < self.total_tokens:
            raise UserError(
                f"--max-batch-total-tokens {budget} is less than --max-total-tokens {self.total_tokens}: a request of that length "
                "could never run; raise the first or lower the second"
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise UserError(f"{flag(name)} must be at least {least}, not {value}")

    @property
    def model_path(self) -> str | None:
        """What is loaded: the folder that replaces the Hub's cache, else the model as it was named; None for the embedded one."""
        return self.weights_cache_override or self.model_id


def flag(name: str) -> str:
    """A setting's name on the command line."""
    return "--" + name.replace("_", "-")
