"""The command line of a server: text-generation-inference's launcher flags and ours, each also from its environment variable."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from inferometer.errors import UserError, shown
from inferometer.model.formats import KEPT_HEAD, NARROW_KV_DTYPES, QUANTIZED_FORMATS
from inferometer.server.settings import ServerSettings, flag

NO_VARIABLE = frozenset({"hostname", "seed", "device", "disk"})
"""HOSTNAME is set by shells and container runtimes to the machine's own name: who reads it listens where nobody asked for.
SEED, DEVICE and DISK are names that anything may use."""

POINTLESS: Mapping[str, str] = {
    "waiting_served_ratio": "prompts run in pieces beside the requests that generate, so that nobody is paused to let others in",
    "max_waiting_tokens": "requests enter at every step where there is room, so that there is no wait to be bounded",
    "shard_uds_path": "the engine is reached through a socket pair without a name, so that no file can be stale or left behind",
    "trust_remote_code": "no code of a model is ever run: its configuration describes it, and the transformer is ours",
}
"""Settings that change nothing here, and why. They are checked all the same."""

MEETING = ("master_addr", "master_port")
"""Settings that change nothing unless the server starts shards, which meet there."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. read: text -> value, which raises ValueError; None for a switch."""

    name: str
    help: str
    read: Callable[[str], Any] | None = str
    metavar: str = "VALUE"

    @property
    def variable(self) -> str | None:
        """The environment variable that it is read from as well."""
        return None if self.name in NO_VARIABLE else self.name.upper()


def _boolean(text: str) -> bool:
    if text.strip().lower() in ("true", "1", "yes", "on"):
        return True
    if text.strip().lower() in ("false", "0", "no", "off", ""):
        return False
    raise ValueError("must be true or false")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return read


FLAGS: Sequence[Flag] = (
    Flag("model_id", "Hub id, folder, .gguf file or preset (default: the embedded model)", metavar="MODEL"),
    Flag("revision", "branch, tag or commit of a model of the Hub", metavar="REVISION"),
    Flag("sharded", "whether to spread the model over several devices: all GPUs, or --num-shard", _boolean, "true|false"),
    Flag("num_shard", "devices to spread the model over, each in a process of its own (default: 1)", _whole, "N"),
    Flag(
        "quantize",
        f"of the layers' matrices, with a head in int8: {', '.join(QUANTIZED_FORMATS)}; with {KEPT_HEAD} behind it the head stays; "
        "bitsandbytes means int8",
        metavar="FORMAT",
    ),
    Flag("trust_remote_code", "accepted; no code of a model is ever run", None),
    Flag(
        "max_concurrent_requests",
        "most sequences in flight, n of a request of n; one more is refused at once with 429 (default: 128)",
        _whole,
        "N",
    ),
    Flag("max_best_of", "largest best_of of a request (default: 2)", _whole, "N"),
    Flag("max_stop_sequences", "most stop sequences of a request (default: 4)", _whole, "N"),
    Flag("max_input_length", "most prompt tokens of a request (default: 1000)", _whole, "N"),
    Flag("max_total_tokens", "most tokens of a request, prompt and generated (default: 1512)", _whole, "N"),
    Flag("max_batch_size", "most requests that run together", _whole, "N"),
    Flag("waiting_served_ratio", "accepted; prompts never pause the requests that generate", _real, "R"),
    Flag("max_batch_total_tokens", "most tokens of all running requests together (default: what the memory holds)", _whole, "N"),
    Flag("max_waiting_tokens", "accepted; requests enter at every step", _whole, "N"),
    Flag("port", "port to listen at, 0 for any free one (default: 3000)", _whole, "PORT"),
    Flag("shard_uds_path", "accepted; no named socket is used", metavar="PATH"),
    Flag("master_addr", "address of this machine where the shards meet (default: localhost)", metavar="ADDRESS"),
    Flag("master_port", "port where the shards meet (default: any that is free)", _whole, "PORT"),
    Flag("huggingface_hub_cache", "the Hub's cache folder", metavar="FOLDER"),
    Flag("weights_cache_override", "folder whose files replace the look-up in the Hub's cache", metavar="FOLDER"),
    Flag("disable_custom_kernels", "run without kernels and graphs of ours", None),
    Flag("json_output", "log as JSON, one object a line", None),
    Flag("otlp_endpoint", "OpenTelemetry collector (OTLP over gRPC) that traces go to", metavar="URL"),
    Flag("cors_allow_origin", "origin that a browser may call from; repeatable (default: any)", metavar="ORIGIN"),
    Flag("watermark_gamma", "share of the vocabulary that a watermark favours (default: 0.5)", _real, "G"),
    Flag("watermark_delta", "what a watermark adds to a favoured token's score (default: 2)", _real, "D"),
    Flag("hostname", "address to listen at (default: 0.0.0.0)", metavar="ADDRESS"),
    Flag("dtype", "number format of weights and activations", metavar="auto|float32|float16|bfloat16"),
    Flag("kv_dtype", "number format of the KV cache (default: as activations)", _one_of("auto", *NARROW_KV_DTYPES), "auto|fp8|int8"),
    Flag("api_key", "key that requests must carry as `Authorization: Bearer KEY`", metavar="KEY"),
    Flag("weights", "dummy: random, seeded, nothing to download (default: auto)", _one_of("auto", "dummy"), "auto|dummy"),
    Flag("tokenizer", "a tokenizer's folder or file, or byte: one token a byte (default: the model's)", metavar="PATH|byte"),
    Flag("drain_seconds", "how long open requests may go on after SIGTERM (default: 90)", _real, "S"),
    Flag("device", "where to run (default: the first GPU, else the CPU)", metavar="auto|cpu|cuda[:N]"),
    Flag("gpu_memory", "most memory to take on the device, in GiB", _real, "GIB"),
    Flag("offload", "share of the layers' weights that comes from the host with every step", metavar="weights[:FRACTION]"),
    Flag("host_memory", "most host memory for these weights, in GiB (default: what is free)", _real, "GIB"),
    Flag("disk", "folder for the weights that the host's memory has no room for; made, with all above it, if missing", metavar="DIR"),
    Flag("seed", "of dummy weights (default: 0); a request that brings no seed is given one at random", _whole, "N"),
    Flag("validation_workers", "threads that tokenise (default: 2)", _whole, "N"),
    Flag("max_top_n_tokens", "largest top_n_tokens of a request (default: 20)", _whole, "N"),
    Flag("payload_limit", "most bytes of a request's body (default: 2000000)", _whole, "BYTES"),
    Flag("queue_seconds", "how long a request may wait for its turn before 503 (default: 300)", _real, "S"),
    Flag("client_seconds", "how long a client may take to send a request, or to read on (default: 60)", _real, "S"),
    Flag("stall_seconds", "after so long without a step, with work pending, /health says 503 (default: 60)", _real, "S"),
)

assert {each.name for each in FLAGS} == {each.name for each in fields(ServerSettings)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag; one that is not given leaves no trace in the parsed arguments."""
    for each in FLAGS:
        common = {"dest": each.name, "help": each.help, "default": argparse.SUPPRESS}
        if each.read is None:
            parser.add_argument(flag(each.name), action="store_true", **common)  # type: ignore[arg-type]
        elif each.name == "cors_allow_origin":
            parser.add_argument(flag(each.name), action="append", metavar=each.metavar, **common)  # type: ignore[arg-type]
        else:
            parser.add_argument(flag(each.name), metavar=each.metavar, **common)  # type: ignore[arg-type]


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> ServerSettings:
    """The settings of a command line; a flag wins over its variable. Raises UserError that names the one or the other."""
    values: dict[str, Any] = {}
    for each in FLAGS:
        if each.name in arguments:
            values[each.name] = _read(each, arguments[each.name], flag(each.name))
        elif each.variable is not None and environment.get(each.variable, "") != "":
            text = environment[each.variable]
            values[each.name] = _read(each, text.split(",") if each.name == "cors_allow_origin" else text, each.variable)
    return ServerSettings(**values)


def pointless(settings: ServerSettings) -> list[str]:
    """One line for every setting that was given a value of its own and changes nothing, with the reason."""
    default = ServerSettings()
    lines = [
        f"{flag(name)} has no effect: {reason}" for name, reason in POINTLESS.items() if getattr(settings, name) != getattr(default, name)
    ]
    if settings.sharded is False or (settings.num_shard or 1) == 1:
        lines += [
            f"{flag(name)} has no effect: one process drives the device, so that there is nobody to meet"
            for name in MEETING
            if getattr(settings, name) != getattr(default, name)
        ]
    if settings.sharded is False and (settings.num_shard or 1) > 1:
        lines.append(f"--num-shard {settings.num_shard} has no effect: --sharded false asks for one device")
    if settings.revision is not None and settings.model_id is None:
        lines.append("--revision has no effect: the embedded model has one version")
    return lines


def _read(each: Flag, given: Any, name: str) -> Any:
    if isinstance(given, list):
        return tuple(part.strip() for part in given if part.strip())
    read = _boolean if each.read is None else each.read
    try:
        return given if isinstance(given, bool) else read(given)
    except ValueError as error:
        raise UserError(f"{name} {error}, not {shown(given)}") from None
