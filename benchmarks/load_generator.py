"""A load generator of other people's, guidellm, against the server: a tiny model on the processor, with few clients and with many.

The model costs next to nothing, so that the figures are the server's and the generator's own: what HTTP, streaming and tokenisation leave
of a machine. guidellm needs packages of its own; install it in an environment of its own and name its program. Prints what was found, and
appends one JSON object a number of clients to the file given.

    python benchmarks/load_generator.py --guidellm PATH [--clients 1 --clients 8 ...] [--requests 400] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from inferometer.bench.machine.calibrate import calibrate
from inferometer.bench.machine.environment import environment

TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 300, "max_position_embeddings": 2048, "tie_word_embeddings": True, "eos_token_id": None,
}  # fmt: skip
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
MEANS = (
    "guidellm's own clients, streaming from `/v1/completions`, on the same two cores as the server and its engine. The model has "
    "{millions:.2g} million parameters, so that a step costs a millisecond and the figures are those of the server and of the generator, "
    "not of a model: about the most requests and tokens a second that HTTP lets through here, and what it adds to a token's time. "
    "load_average: what else the machine was doing (its two cores are shared; above 2 everything waits for a core). server_requests, "
    "server_tokens: the server's own count of the same run."
)


def write_model(folder: Path) -> None:
    """A model's configuration, and a tokenizer of bytes that transformers can read as well."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    (folder / "config.json").write_text(json.dumps(TINY))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server of the model; its address."""
    command = [
        *(sys.executable, "-m", "inferometer", "serve", "--model-id", str(folder), "--tokenizer", str(folder), "--weights", "dummy"),
        *("--dtype", "float32", "--device", "cpu", "--gpu-memory", "1", "--hostname", "127.0.0.1", "--port", "0"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        assert process.stderr is not None
        log = ""
        while (found := re.search(r"serving .* on (http://\S+)", log)) is None:
            line = process.stderr.readline()
            if not line:
                raise SystemExit(log)
            log += line
        try:
            yield found.group(1)
        finally:
            process.terminate()


def counted(url: str) -> tuple[float, float]:
    """The server's count of requests that succeeded, and of their tokens."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    names = (r"tgi_request_success", r"inferometer_generation_tokens_total")
    success, tokens = (float(re.findall(rf"(?m)^{name} (\S+)$", text)[0]) for name in names)
    return success, tokens


def run(guidellm: str, url: str, clients: int, requests: int, scratch: Path) -> dict[str, Any]:
    """What guidellm reports of so many clients, each asking again as soon as it was answered."""
    report = scratch / f"{clients}.json"
    before = counted(url)
    command = [
        *(guidellm, "run", "--disable-console", "--backend", f"kind=openai_http,target={url},request_format=/v1/completions"),
        *("--profile", f"kind=concurrent,streams={clients}", "--constraint", f"kind=max_requests,count={requests}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}"),
    ]
    subprocess.run(command, check=True, cwd=scratch, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    success, tokens = (now - then for now, then in zip(counted(url), before, strict=True))
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]

    def figure(name: str, which: str) -> float:
        told = metrics[name]["successful"]
        return float(told["mean"] if which == "mean" else told["percentiles"][which])

    return {
        "measured": "guidellm", "clients": clients, "requests": totals["successful"], "failed": totals["errored"],
        "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "requests_s": totals["successful"] / benchmark["duration"],
        "output_tok_s": figure("output_token_count", "mean") * totals["successful"] / benchmark["duration"],
        "ttft_p50_ms": figure("time_to_first_token_ms", "p50"), "ttft_p95_ms": figure("time_to_first_token_ms", "p95"),
        "itl_p50_ms": figure("inter_token_latency_ms", "p50"), "itl_p95_ms": figure("inter_token_latency_ms", "p95"),
        "e2e_p50_ms": figure("request_latency", "p50") * 1e3, "e2e_p95_ms": figure("request_latency", "p95") * 1e3,
        "server_requests": int(success), "server_tokens": int(tokens), "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", required=True, help="its program")
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--output", help="file to append records to")
    arguments = parser.parse_args()
    from inferometer.model.description import describe
    from inferometer.model.parameters import parameter_count

    measured = calibrate("cpu", budget_s=4)
    version = subprocess.run([arguments.guidellm, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "tiny")
        folder.mkdir()
        write_model(folder)
        millions = parameter_count(describe(str(folder), config_only=True).spec) / 1e6
        about = {
            "means": MEANS.format(millions=millions), "generator": f"guidellm {version}", "device_name": measured.device_name,
            "copy_bytes_s": measured.copy_bandwidth_bytes_s, "bf16_flop_s": measured.matmul_flop_s.get("bfloat16"),
            "environment": environment(torch.device("cpu")),
        }  # fmt: skip
        with serving(folder) as url:
            for clients in arguments.clients or (1, 8, 32, 64):
                record = run(arguments.guidellm, url, clients, arguments.requests, Path(scratch))
                print(
                    "\n".join(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}" for key, value in record.items())
                )
                print(flush=True)
                if arguments.output:
                    with open(arguments.output, "a") as file:
                        file.write(json.dumps({**record, **about}) + "\n")


if __name__ == "__main__":
    main()
