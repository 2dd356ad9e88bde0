"""A server whose weights come and go: what it answers, and what it says of it."""

from __future__ import annotations

from pathlib import Path

from running_server import LIMITS, RunningServer, dummy


def test_a_server_streams_weights_and_answers_as_one_that_keeps_them(server: RunningServer, models: dict[str, Path]) -> None:
    asked = {"max_new_tokens": 8, "details": True}
    wanted = server.generate("The plain request", **asked)
    with dummy(models["llama"], *LIMITS, "--offload", "weights:0.5", "--host-memory", "0.1", forked=True) as streaming:
        found = streaming.generate("The plain request", **asked)
        lines = [line for line in streaming.log.splitlines() if "pointless" in line]
    assert [token["id"] for token in found["details"]["tokens"]] == [token["id"] for token in wanted["details"]["tokens"]]
    assert len(lines) == 1
    assert lines[0].startswith("inferometer: warning: all weights of ")
    assert ".py" not in streaming.log
