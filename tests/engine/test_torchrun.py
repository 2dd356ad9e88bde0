"""Ranks that torchrun has started: what the environment says, and one model over two hosts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import Watched, descendants

from inferometer import LLM, SamplingParams
from inferometer.cli.main import main
from inferometer.engine.parallel.torchrun import Torchrun
from inferometer.errors import UserError
from tiny_models import tiny_model

HERE = Path(__file__).resolve().parent
STARTED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_the_environment_says_which_rank_this_is() -> None:
    more = {**STARTED, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    found = Torchrun.of({**more, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert found == Torchrun(5, 8, 1, 4, "10.0.0.1", 29500, hosted=True, attempt="2")
    assert Torchrun.of(STARTED) == Torchrun(0, 2, 0, 1, "10.0.0.1", 29500, hosted=False)


@pytest.mark.parametrize("missing", STARTED)
def test_a_process_that_was_started_otherwise_is_alone(missing: str) -> None:
    assert Torchrun.of({name: value for name, value in STARTED.items() if name != missing}) is None
    assert Torchrun.of({**STARTED, "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize("wrong", [{"RANK": "one"}, {"WORLD_SIZE": "-2"}, {"MASTER_PORT": ""}, {"RANK": "2"}, {"LOCAL_RANK": "x"}])
def test_an_environment_that_makes_no_sense_is_told(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match="torchrun"):
        Torchrun.of({**STARTED, **wrong})


def test_another_number_than_torchruns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Torchrun, "end", lambda self: None)
    model = str(tiny_model(tmp_path, "llama"))
    arguments = ["generate", "--model", model, "--weights", "dummy", "--device", "cpu", "--tensor-parallel", "4", "x"]
    assert main(arguments) == 2
    assert "--tensor-parallel 4, and torchrun has started 2 processes; use --tensor-parallel 2" in capsys.readouterr().err


@contextmanager
def two_hosts(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A command on two hosts that torchrun joins: network namespaces, or addresses of this machine where it has none to give."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    given: dict[str, Any] = {"env": environment, "text": True, "stdin": subprocess.DEVNULL, "cwd": HERE}
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--master-port", port]
    run += ["--master-addr", "127.0.0.2"]
    program = ["-m", "inferometer", *command]
    other = None
    if subprocess.run(["unshare", "-rn", "ip", "link", "add", "left", "type", "veth", "peer", "name", "right"], check=False).returncode:
        other = subprocess.Popen(
            [*run, "--node-rank", "1", "--local-addr", "127.0.0.3", *program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **given
        )
        whole = [*run, "--node-rank", "0", "--local-addr", "127.0.0.2", *program]
    else:
        whole = ["unshare", "-rn", "sh", str(HERE / "two_hosts.sh"), sys.executable, port, *program]
    process = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given)
    try:
        yield process
    finally:
        for each in (process, other):
            if each is not None:
                for pid in descendants(each.pid) if each.poll() is None else []:
                    os.kill(pid, signal.SIGKILL)
                each.kill()
                each.wait()


def generate(folder: Path, *more: str) -> list[str]:
    """The arguments of a command on a small model."""
    model = ["--model", str(folder), "--weights", "dummy", "--dtype", "float32", "--device", "cpu", "--gpu-memory", "0.05", "--ignore-eos"]
    return ["generate", *model, *more]


@pytest.mark.slow
def test_a_model_over_two_hosts_says_what_it_says_on_one(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama")
    how: dict[str, Any] = {"weights": "dummy", "dtype": "float32", "device": "cpu", "gpu_memory": 0.05}
    with LLM(folder, **how) as llm:
        (wanted,) = llm.generate(["hello"], SamplingParams(max_new_tokens=12, ignore_eos=True))
    with two_hosts(*generate(folder, "--max-new-tokens", "12", "--json", "hello")) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(out)["completions"][0]["token_ids"] == wanted.token_ids


PROGRAM = """
import os
from inferometer import LLM, SamplingParams
for seed in (1, 2):
    llm = LLM({folder!r}, weights="dummy", dtype="float32", device="cpu", tensor_parallel=2, gpu_memory=0.05, seed=seed)
    print(os.environ["RANK"], llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=4, ignore_eos=True))[0].token_ids)
"""


@pytest.mark.slow
def test_a_program_goes_on_on_rank_0_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tiny_model(tmp_path, "llama"))))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == ["0", "0"]


@pytest.mark.slow
def test_a_mistake_is_one_line_and_ends_the_other_host(tmp_path: Path) -> None:
    with two_hosts(*generate(tmp_path / "nothing", "hello")) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("inferometer: error:") == 1
    assert "no such file or folder" in errors


@pytest.mark.slow
def test_a_host_that_is_lost_ends_the_other(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "gpt2", n_positions=4096)
    with two_hosts(*generate(folder, "--max-new-tokens", "4000", "hello")) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # it is under way
        ranks = [pid for pid in descendants(process.pid) if b"inferometer\0generate" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        ranks = [pid for pid in ranks if b"torch.distributed.run" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(ranks) == 2
        watched = Watched(ranks)
        follower = next(pid for pid in ranks if "RANK=1\0" in Path(f"/proc/{pid}/environ").read_text())
        os.kill(follower, signal.SIGKILL)
        assert watched.gone() == []
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "inferometer: error: RanksError: rank 1 (process" in errors
