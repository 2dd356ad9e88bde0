"""What quantization is held to on a GPU: opt-6.7b with dummy weights, each format beside bfloat16 in the same run.

    python benchmarks/quantization.py [--only PART] [--decode] [--profile] [--output FILE]

Parts are bf16, int8, w8a8, int4-g64, fp8 (decode steps at batch 1 and 16, prefill of 16 x 1024, bytes of the weights), kv (decode
steps of a bfloat16 model at batch 48 and context 1,900, with the cache in bfloat16, fp8 and int8) and, only if asked for, hf-int8
(transformers with bitsandbytes' LLM.int8, batch 1). Each runs in a process of its own under a time limit. Ratios are printed last, and one
JSON object a measurement is appended to the file given (benchmarks/quantization_records.py makes a table of it).

Single launches and products of many rows: benchmarks/quantization_launches.py and quantization_shapes.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from quantization_launches import FORMATS
from quantization_steps import HF, measure

GATES = {
    "decode 1": {"int8": 1.65, "int4-g64": 2.3, "fp8": 1.6},
    "decode 16": {"int8": 1.5, "int4-g64": 1.9, "fp8": 1.5},
    "prefill": {"w8a8": 1.2, "int4-g64": 0.9, "fp8": 1.4},
    "kv": {"fp8": 1.5},
}
"""Times as fast as bfloat16, at least."""
TIMES_HF = 5.0
"""As fast as transformers with bitsandbytes int8 our int8 is, at least: a decode step at batch 1."""
BYTES = {"int8": 0.52, "int4-g64": 0.31, "fp8": 0.52}
"""Of bfloat16's bytes, at most."""
LIMIT_S = 150.0


def summary(records: list[dict[str, Any]]) -> bool:
    """Prints ratios beside gates. Returns whether all that were measured are kept."""
    found = {(record["measured"], record["format"]): record for record in records}
    kept = True
    ours, theirs = found.get(("decode 1", "int8")), found.get(("decode 1", HF))
    if ours is not None and theirs is not None:
        ratio = theirs["ms"] / ours["ms"]
        kept &= ratio >= TIMES_HF
        print(f"{theirs['stack_version']}: {theirs['ms']:.3f} ms, ours {ratio:.2f}x as fast{verdict(ratio, TIMES_HF, least=True)}")
    for (measured, name), record in found.items():
        base = found.get((measured, "bf16"))
        if measured == "bytes" and base is not None:
            ratio, most = record["weight_bytes"] / base["weight_bytes"], BYTES.get(name)
            kept &= most is None or ratio <= most
            print(f"weights    {name:9} {record['weight_bytes'] / 1e9:8.3f} GB  {ratio:.3f}x{verdict(ratio, most, least=False)}")
        elif "ms" in record and base is not None:
            ratio, least = base["ms"] / record["ms"], GATES[measured].get(name)
            kept &= least is None or ratio >= least
            print(f"{measured:10} {name:9} {record['ms']:8.3f} ms  {ratio:.3f}x{verdict(ratio, least, least=True)}")
        if "kernels" in record:
            print(f"{measured} {name}:")
            for kernel, (us, count) in record["kernels"].items():
                print(f"    {us:8.2f} us {count:6.1f} x {us / count:7.2f} us  {kernel}")
    return kept


def verdict(ratio: float, gate: float | None, *, least: bool) -> str:
    if gate is None:
        return ""
    return f" (gate {gate}: {'kept' if (ratio >= gate if least else ratio <= gate) else 'MISSED'})"


def gates(only: list[str], profiled: bool, decode: bool, output: str | None) -> int:
    """Every part in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(output or Path(folder) / "records.jsonl")
        first = len(path.read_text().splitlines()) if path.exists() else 0
        failed = []
        for part in only or [*FORMATS, "kv"]:
            flags = [name for name, asked in (("--profile", profiled), ("--decode", decode)) if asked]
            command = [sys.executable, __file__, "--part", part, "--output", str(path), *flags]
            started = time.monotonic()
            try:
                code = subprocess.run(command, timeout=LIMIT_S, check=False).returncode
            except subprocess.TimeoutExpired:
                code = 124
            if code:
                failed.append(part)
            print(f"{part}: {time.monotonic() - started:.0f} s{f', FAILED with {code}' if code else ''}", flush=True)
        records = [json.loads(line) for line in path.read_text().splitlines()[first:]] if path.exists() else []
    return 0 if summary(records) and not failed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=(*FORMATS, "kv", HF), help="this part; repeatable")
    parser.add_argument("--decode", action="store_true", help="without prefill")
    parser.add_argument("--profile", action="store_true", help="also say which kernels take the time")
    parser.add_argument("--output", help="file to append records to")
    parser.add_argument("--part", choices=(*FORMATS, "kv", HF), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is None:
        return gates(options.only or [], options.profile, options.decode, options.output)
    for record in measure(options.part, options.profile, options.decode):
        with open(options.output, "a") as file:
            file.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
