"""A server's life: it starts or says why not, it ends cleanly, and nothing is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from running_server import LIMITS, RunningServer, children, dummy, is_running, until

from tiny_models import tiny_model

LONG = {"inputs": "a long one", "parameters": {"max_new_tokens": 400}}


def start(models: dict[str, Path], *more: str) -> tuple[int, str, float]:
    """Exit code, last line of standard error and seconds of a server that does not start."""
    began = time.monotonic()
    with RunningServer("--model-id", str(models["llama"]), "--weights", "dummy", "--device", "cpu", *more, wait=False) as server:
        code = server.process.wait(60)
        server._reader.join()
        assert children(server.process.pid) == []
        return code, server.log, time.monotonic() - began


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--model-id", "/nowhere/at/all"), "no such file or folder"),
        (("--max-input-length", "100", "--max-total-tokens", "100"), "--max-input-length 100 must be below --max-total-tokens 100"),
        (("--max-batch-total-tokens", "64"), "--max-batch-total-tokens 64 is less than --max-total-tokens"),
        (("--max-total-tokens", "2048"), "--max-total-tokens 2048 is more than the 512 tokens that the model can hold"),
        (("--num-shard", "0"), "--num-shard must be at least 1"),
        (("--num-shard", "3"), "--num-shard 3 does not divide tiny-llama (4 heads"),
        (("--max-batch-total-tokens", "99999999999"), "--max-batch-total-tokens 99999999999 needs 6250000000 pages of KV cache"),
        (("--tokenizer", "/nowhere"), "no tokenizer at /nowhere"),
        (("--sharded", "maybe"), "--sharded must be true or false, not 'maybe'"),
        (("--max-best-of", "9", "--max-concurrent-requests", "4"), "--max-best-of 9 is more than --max-concurrent-requests 4"),
        (("--hostname", "203.0.113.7"), "--hostname 203.0.113.7 is no address of this machine: Cannot assign"),
        (("--dtype", "float7"), "--dtype float7 is unknown"),
        (("--port", "70000"), "--port must be at most 65535"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(models: dict[str, Path], arguments: tuple[str, ...], complaint: str) -> None:
    code, log, _ = start(models, *arguments)
    assert code == 2
    lines = [line for line in log.splitlines() if line.startswith("inferometer: error:")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("model.safetensors", b"\xff" * 5000, "model.safetensors: not a whole safetensors file"),
        ("config.json", b"{", "config.json is not valid JSON"),
        ("tokenizer.json", b"{}", "tokenizer.json: not a tokenizer.json that can be read"),
    ],
)
def test_a_damaged_model_is_one_line(tmp_path: Path, file: str, content: bytes, complaint: str) -> None:
    folder = tiny_model(tmp_path, "llama")
    (folder / file).write_bytes(content)
    if file == "tokenizer.json":
        (folder / "model.safetensors").write_bytes(b"")
    with RunningServer("--model-id", str(folder), "--device", "cpu", wait=False, forked=True) as server:
        assert server.process.wait(60) == 2
        server._reader.join()
        assert children(server.process.pid) == []
        (line,) = [line for line in server.log.splitlines() if line.startswith("inferometer: error:")]
    assert complaint in line
    assert "Traceback" not in server.log


def test_a_port_in_use_is_told(models: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, log, _ = start(models, "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot be used: Address already in use; use another --port" in log


@pytest.fixture
def small_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    """A server of its own for a test that ends it: four permits."""
    with dummy(models["llama"], *LIMITS, "--max-concurrent-requests", "4", "--drain-seconds", "20") as running:
        yield running


ENVIRONMENT = {
    "MODEL_ID": "someone/tiny",
    "MAX_BEST_OF": "5",
    "MAX_STOP_SEQUENCES": "7",
    "WEIGHTS": "dummy",
    "HOSTNAME": "elsewhere",
    "MAX_TOP_N_TOKENS": "2",
    "VALIDATION_WORKERS": "1",
    "DISABLE_CUSTOM_KERNELS": "true",
    "TRUST_REMOTE_CODE": "true",
    "MAX_WAITING_TOKENS": "7",
}


@pytest.fixture(scope="module")
def begun(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, int, str]]:
    """A server told by its environment and by flags, where another's socket was left; what it said, and had told by then, when it first
    let somebody in who had asked from the start."""
    folder = tmp_path_factory.mktemp("configured")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "uds-0"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**ENVIRONMENT, "WEIGHTS_CACHE_OVERRIDE": str(models["bloom"])}
    more = ("--max-stop-sequences", "2", "--shard-uds-path", str(folder / "uds"), "--port", str(port))
    with RunningServer("--device", "cpu", *LIMITS, *more, environment=environment, wait=False) as running:
        running.port = port
        while True:
            try:
                status = running.get("/health").status
            except ConnectionRefusedError:
                assert running.process.poll() is None
                time.sleep(0.05)
            else:
                break
        yield running, status, running.log


@pytest.fixture(scope="module")
def configured(begun: tuple[RunningServer, int, str]) -> RunningServer:
    return begun[0]


def test_nobody_is_let_in_before_it_is_warm(begun: tuple[RunningServer, int, str]) -> None:
    _, status, log = begun
    assert status == 200
    assert "serving" in log


def test_a_stale_socket_file_changes_nothing(configured: RunningServer) -> None:
    configured.alive()
    assert "--shard-uds-path has no effect: the engine is reached through a socket pair without a name" in configured.log


def test_settings_come_from_the_environment_and_flags_win(configured: RunningServer) -> None:
    info = configured.get("/info").json()
    refused = configured.post("/generate", {"inputs": "x", "parameters": {"top_n_tokens": 3, "details": True}})
    assert (refused.status, refused.json()["error"]) == (422, "`top_n_tokens` must be at most 2")
    assert len(configured.generate("x", top_n_tokens=2, details=True, max_new_tokens=1)["details"]["top_tokens"][0]) == 2
    for pointless in ("--trust-remote-code", "--max-waiting-tokens"):
        assert f"{pointless} has no effect" in configured.log
    assert (info["model_id"], info["max_best_of"], info["max_stop_sequences"]) == (ENVIRONMENT["MODEL_ID"], 5, 2)
    assert (info["validation_workers"], info["max_waiting_tokens"]) == (1, 7)
    with RunningServer("--device", "cpu", environment={**ENVIRONMENT, "MAX_BEST_OF": "many"}, wait=False) as server:
        assert server.process.wait(30) == 2
        server._reader.join()
        assert "MAX_BEST_OF must be a whole number, not 'many'" in server.log


def test_a_model_of_the_hub_is_looked_for_in_the_cache_that_was_named(models: dict[str, Path], tmp_path: Path) -> None:
    repository = tmp_path / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    shutil.copytree(models["llama"], repository / "snapshots" / "abc123")
    named = ("--model-id", "someone/tiny", "--huggingface-hub-cache", str(tmp_path))
    with RunningServer(*named, "--weights", "dummy", "--device", "cpu", *LIMITS, forked=True) as server:
        assert server.get("/info").json()["model_id"] == "someone/tiny"
        server.alive()


def test_a_signal_lets_open_requests_finish(small_server: RunningServer) -> None:
    engine = small_server.engine_process()
    connection, response = small_server.open_stream("/generate_stream", LONG)
    small_server.process.send_signal(signal.SIGTERM)
    small_server.wait_for_log("ending: sequences in flight: 1")
    assert small_server.post("/generate", LONG).status == 503
    assert small_server.get("/health").status == 503
    rest = response.read()
    connection.close()
    assert b'"finish_reason":null' not in rest
    assert json.loads(rest.decode().strip().rpartition("data:")[2])["generated_text"] is not None
    assert small_server.process.wait(20) == 0
    assert not is_running(engine)


def test_a_second_signal_ends_it_now(models: dict[str, Path]) -> None:
    twice = {"inputs": "a long one", "parameters": {"max_new_tokens": 400, "best_of": 2, "do_sample": True}}
    with dummy(models["llama"], *LIMITS, "--drain-seconds", "600") as server:
        engine = server.engine_process()
        os.kill(engine, signal.SIGSTOP)  # so that what is open stays open
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(server.post("/generate", twice).status))
        asking.start()
        until(lambda: b"inferometer_permits_in_use 2.0\n" in server.get("/metrics").body)
        server.process.send_signal(signal.SIGINT)  # which lets what is open go on as well
        server.wait_for_log("ending: sequences in flight: 2")  # of one request
        assert server.end() == 0
        asking.join(20)
        assert answers == [503]
        assert not is_running(engine)


@pytest.mark.parametrize("wait", [True, False])
def test_signals_without_end_end_it_well(models: dict[str, Path], wait: bool) -> None:
    with RunningServer("--model-id", str(models["llama"]), "--weights", "dummy", "--device", "cpu", *LIMITS, wait=wait) as server:
        until(lambda: children(server.process.pid), 60)  # else it is starting still
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        assert server.process.returncode == 0


def test_a_killed_server_takes_its_engine_along(small_server: RunningServer) -> None:
    engine = small_server.engine_process()
    connection, _ = small_server.open_stream("/generate_stream", LONG)
    small_server.process.kill()
    until(lambda: not is_running(engine))
    connection.close()


def test_a_server_that_is_killed_while_it_loads_takes_its_engine_along(models: dict[str, Path]) -> None:
    with RunningServer("--model-id", str(models["llama"]), "--weights", "dummy", "--device", "cpu", wait=False) as server:
        until(lambda: children(server.process.pid), 60)
        engine = server.engine_process()
        server.process.kill()
        until(lambda: not is_running(engine))


def test_a_signal_while_it_loads_ends_it(models: dict[str, Path]) -> None:
    with RunningServer("--model-id", str(models["llama"]), "--weights", "dummy", "--device", "cpu", wait=False) as server:
        until(lambda: children(server.process.pid), 60)
        engine = server.engine_process()
        time.sleep(0.3)
        assert server.end() == 0
        assert not is_running(engine)


def test_a_dead_engine_is_told(small_server: RunningServer) -> None:
    engine = small_server.engine_process()
    connection, response = small_server.open_stream("/generate_stream", LONG)
    os.kill(engine, signal.SIGSTOP)
    prompt = {"model": "tgi", "prompt": "x", "max_tokens": 4}
    with openai.OpenAI(base_url=f"{small_server.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(stream=True, **prompt)  # its head comes all the same
        os.kill(engine, signal.SIGKILL)
        last = json.loads(response.read().decode().strip().rpartition("data:")[2])
        connection.close()
        assert last["error_type"] == "generation"
        with pytest.raises(openai.APIError, match="Request failed during generation"):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            client.completions.create(**prompt)
    assert small_server.post("/v1/completions", {"prompt": "x"}).json()["error"]["type"] == "server_error"
    for path in ("/health", "/ping", "/"):
        answer = small_server.get(path)
        assert (answer.status, answer.json()) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    assert small_server.post("/generate", LONG).status == 503
    small_server.wait_for_log(rf"ERROR the engine \(process {engine}\) has ended \(SIGKILL\): nothing is served any more")
    assert small_server.end() == 1


def test_an_engine_that_stands_still_is_told_and_draining_has_an_end(models: dict[str, Path]) -> None:
    with dummy(models["llama"], *LIMITS, "--stall-seconds", "1", "--drain-seconds", "0", forked=True) as server:
        engine = server.engine_process()
        os.kill(engine, signal.SIGSTOP)
        connection = server.connect()
        connection.request("POST", "/generate", json.dumps(LONG), {"Content-Type": "application/json"})
        until(lambda: server.get("/health").status == 503)
        os.kill(engine, signal.SIGCONT)
        assert connection.getresponse().status == 200
        connection.close()
        server.alive()
        os.kill(engine, signal.SIGSTOP)
        connection = server.connect()
        connection.request("POST", "/generate_stream", json.dumps(LONG), {"Content-Type": "application/json"})
        response = connection.getresponse()
        server.process.send_signal(signal.SIGTERM)
        assert json.loads(response.read().decode().removeprefix("data:"))["error_type"] == "incomplete_generation"
        connection.close()
        os.kill(engine, signal.SIGCONT)  # else it is killed, as the test of a second signal has it, after a while
        assert server.process.wait(30) == 0
