"""Flags, their variables, and limits that contradict each other."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from inferometer.errors import UserError
from inferometer.server.flags import FLAGS, add_flags, pointless, read_settings
from inferometer.server.settings import ServerSettings, flag


def read(*arguments: str, **environment: str) -> ServerSettings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_settings(vars(parser.parse_args(arguments)), environment)


def test_the_defaults_are_the_launchers() -> None:
    settings = read()
    assert settings == ServerSettings()
    assert (settings.max_concurrent_requests, settings.max_best_of, settings.max_stop_sequences) == (128, 2, 4)
    assert (settings.input_length, settings.total_tokens, settings.port) == (1000, 1512, 3000)
    assert (settings.waiting_served_ratio, settings.max_waiting_tokens, settings.batch_total_tokens) == (1.2, 20, None)
    assert (settings.watermark_gamma, settings.watermark_delta) == (0.5, 2.0)
    assert (settings.shard_uds_path, settings.master_addr, settings.master_port) == ("/tmp/text-generation-server", "localhost", 29500)


VALUES: dict[str, tuple[str, Any]] = {
    "sharded": ("false", False),
    "num_shard": ("2", 2),
    "max_input_length": ("7", 7),
    "max_total_tokens": ("1001", 1001),
    "max_batch_total_tokens": ("2000", 2000),
    "max_concurrent_requests": ("9", 9),
    "weights": ("dummy", "dummy"),
    "dtype": ("bf16", "bf16"),
    "kv_dtype": ("fp8", "fp8"),
    "cors_allow_origin": ("a", ("a",)),
    "watermark_gamma": ("0.25", 0.25),
    "waiting_served_ratio": ("2.5", 2.5),
    "watermark_delta": ("-3.5", -3.5),
    "gpu_memory": ("0.5", 0.5),
    "host_memory": ("0.5", 0.5),
    "offload": ("weights:0.4", "weights:0.4"),
    "drain_seconds": ("0", 0.0),
    "queue_seconds": ("1.5", 1.5),
    "stall_seconds": ("2.5", 2.5),
}


@pytest.mark.parametrize("name", [each.name for each in FLAGS])
def test_every_flag_has_its_variable_and_wins_over_it(name: str) -> None:
    known = next(each for each in FLAGS if each.name == name)
    text, value = VALUES.get(name, ("true", True) if known.read is None else ("5", 5) if known.read is not str else ("word", "word"))
    given = (flag(name),) if known.read is None else (f"{flag(name)}={text}",)
    assert getattr(read(*given), name) == value
    if known.variable is None:
        assert read(**{name.upper(): text}) == ServerSettings()
        return
    assert known.variable == name.upper()
    assert getattr(read(**{known.variable: text}), name) == value
    assert getattr(read(*given, **{known.variable: "not this"}), name) == value
    assert read(**{known.variable: ""}) == ServerSettings()


def test_a_variable_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match=r"MAX_BEST_OF must be a whole number, not '2\.5'"):
        read(MAX_BEST_OF="2.5")
    with pytest.raises(UserError, match="JSON_OUTPUT must be true or false, not 'json'"):
        read(JSON_OUTPUT="json")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_input_length": 1512}, "--max-input-length 1512 must be below --max-total-tokens 1512"),
        ({"max_total_tokens": 1000}, "--max-input-length 1000 must be below --max-total-tokens 1000"),
        ({"max_batch_total_tokens": 1511}, "--max-batch-total-tokens 1511 is less than --max-total-tokens 1512"),
        ({"max_best_of": 129}, "--max-best-of 129 is more than --max-concurrent-requests 128"),
        ({"max_best_of": 0}, "--max-best-of must be at least 1"),
        ({"watermark_gamma": 1.5}, "--watermark-gamma must be from 0 to 1"),
        ({"watermark_delta": float("nan")}, "--watermark-delta must be a finite number"),
        ({"waiting_served_ratio": float("nan")}, "--waiting-served-ratio must be at least 0"),
        ({"drain_seconds": -1.0}, "--drain-seconds must be at least 0"),
        ({"api_key": " "}, "--api-key is empty"),
        ({"sharded": True, "num_shard": 1}, "--sharded true needs --num-shard of at least 2"),
        ({"queue_seconds": 0.0}, "--queue-seconds must be above 0"),
        ({"gpu_memory": float("inf")}, "--gpu-memory must be a number of GiB, not inf"),
        ({"host_memory": float("inf")}, "--host-memory must be a number of GiB, not inf"),
        ({"seed": 2**64}, r"--seed must be below 2\^64, not 18446744073709551616"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        ServerSettings(**values)


def test_a_model_lowers_what_nobody_asked_for() -> None:
    assert (ServerSettings().fitted(None).total_tokens, ServerSettings().fitted(None).input_length) == (1512, 1000)
    small = ServerSettings().fitted(64)
    assert (small.max_total_tokens, small.max_input_length) == (64, 63)
    with pytest.raises(UserError, match="--max-total-tokens 2048 is more than the 1024 tokens that the model can hold"):
        ServerSettings(max_total_tokens=2048).fitted(1024)
    with pytest.raises(UserError, match="--max-input-length 100 must be below --max-total-tokens 64"):
        ServerSettings(max_input_length=100).fitted(64)


def test_fewer_permits_lower_what_nobody_asked_for() -> None:
    assert ServerSettings(max_concurrent_requests=1).max_best_of == 1
    assert ServerSettings(max_concurrent_requests=2).max_best_of == 2


def test_a_batch_size_is_a_budget_of_tokens() -> None:
    assert ServerSettings(max_batch_size=3).batch_total_tokens == 3 * 1512
    assert ServerSettings(max_batch_size=3, max_batch_total_tokens=2000).batch_total_tokens == 2000
    assert ServerSettings(max_batch_size=3, max_batch_total_tokens=9000).batch_total_tokens == 3 * 1512
    with pytest.raises(UserError, match="--max-batch-total-tokens 100 is less than --max-total-tokens 1512"):
        ServerSettings(max_batch_size=3, max_batch_total_tokens=100)


def test_what_has_no_effect_says_why() -> None:
    assert pointless(ServerSettings()) == []
    lines = pointless(ServerSettings(waiting_served_ratio=2.0, master_port=1, sharded=False, num_shard=4, revision="main"))
    assert [line.partition(" has no effect")[0] for line in lines] == [
        "--waiting-served-ratio",
        "--master-port",
        "--num-shard 4",
        "--revision",
    ]
