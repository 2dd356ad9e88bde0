"""How many shards a server's model has, by its flags and by what is here."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError
from inferometer.hardware.detect import detect
from inferometer.server.settings import ServerSettings

# What text-generation-inference's launcher counts, in its order.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def shard_count(settings: ServerSettings, environment: Mapping[str, str]) -> int:
    """The ranks of the model. --sharded true without a number means all GPUs; without either flag it is one, or all of torchrun's.

    Raises UserError where that is not to be had.
    """
    if settings.sharded is False:
        return 1
    here = Torchrun.of(environment)
    if settings.num_shard is not None:
        if here is not None and settings.num_shard != here.size:
            raise UserError(
                f"--num-shard {settings.num_shard}, and torchrun has started {here.size} processes; use --num-shard {here.size}"
            )
        return settings.num_shard
    if here is not None:
        return here.size
    if not settings.sharded:
        return 1
    count = _visible(environment)
    if count < 2:
        raise UserError(f"--sharded true: there are {count} GPUs here; name a number with --num-shard, or leave --sharded out")
    return count


def _visible(environment: Mapping[str, str]) -> int:
    for name in _VISIBLE:
        named = environment.get(name, "")
        if named and named not in ("all", "void", "none"):
            return len(named.split(","))
    return len(detect().gpus)
