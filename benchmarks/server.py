"""What the server is held to, measured: HTTP with streaming against the engine without, on the same model in the same run. The client is
a process of its own (server_client.py). Dummy weights, byte tokenizer. Prints what was found beside what is asked, and appends one JSON
object a measurement to the file given.

    python benchmarks/server.py [--model opt-6.7b] [--dtype bfloat16] [--device cuda] [--only throughput|single|beside|cpu] [--output FILE]
    python benchmarks/server.py --small          # a tiny model on the processor, in a minute
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from inferometer import LLM, SamplingParams
from inferometer.bench.machine.environment import device_name, environment
from inferometer.engine.engine import Engine
from inferometer.model.description import describe
from inferometer.schedule.request import Request
from inferometer.server.engine_process import serving_engine
from inferometer.server.settings import ServerSettings
from inferometer.server.warm_up import warm_up

TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 300, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip

# What the issue of the server asks for.
LEAST_THROUGHPUT = 0.92
MOST_ITL = 1.05
MOST_TTFT_MS = 5.0
MOST_GAP = 3.0
MOST_CPU_US = 80.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. Lengths are tokens; a prompt's text has one character for each."""

    folder: str
    dtype: str
    device: str
    gpu_memory: float | None
    requests: int
    prompt_mean: int
    new_mean: int
    single_prompt: int
    single_new: int
    repeats: int
    long_prompt: int
    beside_new: int

    @property
    def settings(self) -> ServerSettings:
        """The server's settings, as its command line gives them."""
        limits = {"max_input_length": 2040, "max_total_tokens": 2048, "max_concurrent_requests": max(1024, self.requests)}
        return ServerSettings(
            model_id=self.folder, weights="dummy", dtype=self.dtype, device=self.device, gpu_memory=self.gpu_memory, **limits
        )

    @property
    def flags(self) -> list[str]:
        """The command line."""
        limits = ["--max-input-length", "2040", "--max-total-tokens", "2048", "--max-concurrent-requests", str(max(1024, self.requests))]
        memory = [] if self.gpu_memory is None else ["--gpu-memory", str(self.gpu_memory)]
        return ["--model-id", self.folder, "--weights", "dummy", "--dtype", self.dtype, "--device", self.device, *limits, *memory]

    def mix(self) -> list[tuple[str, int]]:
        """(prompt, new tokens) of the requests for the throughput: lognormal lengths."""
        generator = random.Random(0)
        lengths = [lognormal(generator, mean, self.requests) for mean in (self.prompt_mean, self.new_mean)]
        return [(text(generator, prompt), new) for prompt, new in zip(*lengths, strict=True)]

    def singles(self) -> list[str]:
        """Prompts for one client at a time, no two of which begin alike."""
        generator = random.Random(1)
        return [text(generator, self.single_prompt) for _ in range(self.repeats)]


def text(generator: random.Random, length: int) -> str:
    return "".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=length))


def lognormal(generator: random.Random, mean: float, count: int) -> list[int]:
    """`count` lengths of the given mean before they are clipped to 8..1000; sigma 0.8."""
    mu = math.log(mean) - 0.8**2 / 2
    return [min(1000, max(8, round(generator.lognormvariate(mu, 0.8)))) for _ in range(count)]


# Without a server.


def say(what: str, since: float) -> None:
    print(f"{what}: {time.perf_counter() - since:.1f} s", file=sys.stderr, flush=True)


def bare(plan: Plan, parts: Sequence[str]) -> dict[str, Any]:
    """What the engine does by itself: the mix through LLM.generate and through the engine as the server sets it up, and single requests."""
    found: dict[str, Any] = {}
    settings = plan.settings
    begin = time.perf_counter()
    with LLM(plan.folder, weights="dummy", dtype=plan.dtype, device=plan.device, gpu_memory=plan.gpu_memory) as llm:
        say("loaded", begin)
        if "throughput" in parts:
            prompts = [prompt for prompt, _ in plan.mix()]
            params = [SamplingParams(max_new_tokens=new) for _, new in plan.mix()]
            warm = len(prompts) // 3
            llm.generate(prompts[:warm], params[:warm])  # compiles, and records graphs
            llm.engine.clear()
            say("a third of the requests through LLM.generate, and what was first loaded", begin)
            begin = time.perf_counter()
            done = llm.generate(prompts, params)
            found["generate_s"] = time.perf_counter() - begin
            say("all through LLM.generate", begin)
            assert [len(each.token_ids) for each in done] == [each.max_new_tokens for each in params]
            llm.close()
        begin = time.perf_counter()
        engine = serving_engine(llm, settings)
        warm_up(engine, settings.total_tokens)
        found["warm_up_s"] = time.perf_counter() - begin
        say("an engine as the server's, warmed up", begin)
        if "throughput" in parts:
            for number, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
                engine.add(Request(number, tuple(prompt.encode()), own, 0))
            begin = time.perf_counter()
            while engine.has_work:
                engine.step()
            found["engine_s"] = time.perf_counter() - begin
            say("all through it", begin)
        if "single" in parts:
            found |= single_steps(engine, plan)
    return found


def single_steps(engine: Engine, plan: Plan) -> dict[str, Any]:
    """Requests alone: milliseconds to the first token, and between tokens."""
    firsts, gaps = [], []
    for prompt in plan.singles():
        engine.clear()
        engine.add(Request(0, tuple(prompt.encode()), SamplingParams(max_new_tokens=plan.single_new), 0))
        last = begin = time.perf_counter()
        while engine.has_work:
            if engine.step():
                now = time.perf_counter()
                (firsts if last == begin else gaps).append((now - last) * 1e3)
                last = now
    return {"prefill_ms": statistics.median(firsts), "step_ms": statistics.median(gaps)}


# With one.


class Server:
    """`inferometer serve`, running."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self._port = port

    def stream(self, order: str, requests: Sequence[tuple[str, int]], *, lead: int = 0) -> list[tuple[float, list[float]]]:
        """(when sent, when each token came) of every request, in the client's seconds."""
        bodies = [{"inputs": prompt, "parameters": {"max_new_tokens": new}} for prompt, new in requests]
        job = {"port": self._port, "path": "/generate_stream", "order": order, "lead": lead, "bodies": bodies}
        client = [sys.executable, str(Path(__file__).with_name("server_client.py"))]
        done = subprocess.run(client, input=json.dumps(job), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the client failed: {done.stderr[-2000:]}")
        streams = [(each["sent"], each["tokens"]) for each in json.loads(done.stdout)["streams"]]
        assert [len(tokens) for _, tokens in streams] == [new for _, new in requests]
        return streams

    def cpu_s(self) -> float:
        """Processor time of the process that speaks HTTP, so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(plan: Plan) -> Iterator[Server]:
    """A server for as long as this lasts."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "inferometer", "serve", "--hostname", "127.0.0.1", "--port", "0", *plan.flags]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, text=True) as process:
        try:
            while True:
                log.seek(0)
                said = log.read()
                found = re.search(r"serving .* on http://[^ ]*:(\d+)", said)
                if found:
                    break
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start: {said}")
                time.sleep(0.1)
            say("the server ready", begin)
            yield Server(process, int(found.group(1)))
        finally:
            process.terminate()
            assert process.wait(120) == 0


def throughput(plan: Plan, server: Server, alone: dict[str, Any]) -> dict[str, Any]:
    mix = plan.mix()
    server.stream("together", mix[: len(mix) // 3])
    spent = server.cpu_s()
    streams = server.stream("together", mix)
    spent = server.cpu_s() - spent
    seconds = max(tokens[-1] for _, tokens in streams) - min(sent for sent, _ in streams)
    count = sum(new for _, new in mix)
    return {
        "measured": "throughput", "requests": len(mix), "prompt_tokens": sum(len(prompt) for prompt, _ in mix), "new_tokens": count,
        "http_tok_s": count / seconds, "generate_tok_s": count / alone["generate_s"], "engine_tok_s": count / alone["engine_s"],
        "http_of_generate": alone["generate_s"] / seconds, "http_of_engine": alone["engine_s"] / seconds,
        "http_cpu_us_a_token": spent / count * 1e6, "asked": f"http_of_generate >= {LEAST_THROUGHPUT}",
        "met": alone["generate_s"] / seconds >= LEAST_THROUGHPUT,
    }  # fmt: skip


def single(plan: Plan, server: Server, alone: dict[str, Any]) -> dict[str, Any]:
    server.stream("one by one", [(text(random.Random(2), plan.single_prompt), plan.single_new)])
    streams = server.stream("one by one", [(prompt, plan.single_new) for prompt in plan.singles()])
    ttft = statistics.median((tokens[0] - sent) * 1e3 for sent, tokens in streams)
    itl = statistics.median(gap * 1e3 for _, tokens in streams for gap in gaps(tokens))
    over, ratio = ttft - alone["prefill_ms"], itl / alone["step_ms"]
    return {
        "measured": "single", "prompt_tokens": plan.single_prompt, "new_tokens": plan.single_new, "repeats": plan.repeats,
        "itl_ms": itl, "step_ms": alone["step_ms"], "itl_of_step": ratio, "ttft_ms": ttft, "prefill_ms": alone["prefill_ms"],
        "ttft_over_prefill_ms": over, "asked": f"itl_of_step <= {MOST_ITL}, ttft_over_prefill_ms <= {MOST_TTFT_MS}",
        "met": ratio <= MOST_ITL and over <= MOST_TTFT_MS,
    }  # fmt: skip


def beside(plan: Plan, server: Server) -> dict[str, Any]:
    """32 streams, and a long prompt in the middle: gaps from when all run until the first of them ends."""
    worst = []
    for repeat in range(plan.repeats // 2 or 1):
        generator = random.Random(100 + repeat)
        requests = [(text(generator, 64), plan.beside_new) for _ in range(32)] + [(text(generator, plan.long_prompt), 2)]
        *others, (sent, long) = server.stream("beside", requests, lead=plan.beside_new // 3)
        begin, end = max(tokens[0] for _, tokens in others), min(tokens[-1] for _, tokens in others)
        assert end > long[0], "the streams ended before the long prompt's first token: let them be longer"
        pairs = [pair for _, tokens in others for pair in pairwise(tokens) if begin <= pair[0] and pair[1] <= end]
        median = statistics.median(after - before for before, after in pairs)
        during = max(after - before for before, after in pairs if after >= sent and before <= long[0])
        quiet = max(after - before for before, after in pairs if after < sent or before > long[0])
        worst.append((during / median, during * 1e3, quiet * 1e3, median * 1e3, (long[0] - sent) * 1e3))
    ratio, longest, quiet_ms, median_ms, ttft_ms = max(worst)
    return {
        "measured": "beside", "streams": 32, "long_prompt": plan.long_prompt, "longest_of_median": ratio, "longest_gap_ms": longest,
        "median_gap_ms": median_ms, "longest_gap_without_ms": quiet_ms, "long_ttft_ms": ttft_ms, "all_ratios": [each[0] for each in worst],
        "asked": f"longest_of_median < {MOST_GAP}", "met": ratio < MOST_GAP,
    }  # fmt: skip


def gaps(tokens: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(tokens)]


def cpu(server: Server) -> dict[str, Any]:
    """What a streamed token costs the process that speaks HTTP; of a tiny model, with 64 clients."""
    generator = random.Random(3)
    requests = [(text(generator, 32), 300) for _ in range(64)]
    server.stream("together", requests)
    costs = []
    for _ in range(3):
        spent = server.cpu_s()
        server.stream("together", requests)
        costs.append((server.cpu_s() - spent) / (64 * 300) * 1e6)
    cost = statistics.median(costs)
    return {
        "measured": "cpu", "clients": 64, "tokens": 64 * 300, "cpu_us_a_token": cost, "all_us": costs,
        "asked": f"cpu_us_a_token <= {MOST_CPU_US:g}", "met": cost <= MOST_CPU_US,
    }  # fmt: skip


def write_model(folder: Path, config: dict[str, Any]) -> str:
    """A folder with a model's configuration, without an end token: every request has the length that it asks for."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="opt-6.7b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="a tiny model on the processor")
    parser.add_argument("--only", choices=("throughput", "single", "beside", "cpu"), action="append")
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    parts = arguments.only or ["throughput", "single", "beside", "cpu"]
    with tempfile.TemporaryDirectory() as scratch:
        tiny = Plan(write_model(Path(scratch, "tiny"), TINY), "float32", "cpu", 0.25, 60, 60, 60, 256, 100, 4, 1500, 600)
        if arguments.small:
            plan = tiny
        else:
            described = describe(arguments.model, config_only=True)
            folder = write_model(Path(scratch, "model"), dict(described.config))
            plan = Plan(folder, arguments.dtype, arguments.device, None, arguments.requests, 220, 180, 512, 256, 10, 2000, 600)
        name = "tiny" if arguments.small else arguments.model
        device = torch.device(plan.device)
        about = {"model": name, "dtype": plan.dtype, "device_name": device_name(device), "environment": environment(device)}

        def keep(record: dict[str, Any]) -> None:
            for key, value in record.items():
                print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
            print(flush=True)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps({**about, **record}) + "\n")

        if set(parts) - {"cpu"}:
            alone: dict[str, Any] = {}
            if {"throughput", "single"} & set(parts):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:  # so that its memory is free again for the server
                    alone = apart.submit(bare, plan, parts).result()
            with serving(plan) as server:
                if "throughput" in parts:
                    keep(throughput(plan, server, alone))
                if "single" in parts:
                    keep(single(plan, server, alone))
                if "beside" in parts:
                    keep(beside(plan, server))
        if "cpu" in parts:
            with serving(tiny) as server:
                keep({**cpu(server), "model": "tiny", "dtype": "float32", "device_name": device_name(torch.device("cpu"))})


if __name__ == "__main__":
    main()
