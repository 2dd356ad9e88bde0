"""What benchmarks/quantization.py measured, as benchmarks/RESULTS.md shows it: formats side by side, each beside bfloat16, its gate, what
the estimator says and the least that the device could take.

    python benchmarks/quantization_records.py RAW [RAW ...] --output benchmarks/measurements/quantization-h200.jsonl

Of several files the later ones count where both have a measurement. Nothing here needs a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantization import BYTES, GATES, TIMES_HF
from quantization_launches import FORMATS
from quantization_steps import HF, MODEL

from inferometer.estimate.deployment import Deployment
from inferometer.estimate.layout import Layout
from inferometer.estimate.limits import limits
from inferometer.estimate.stack import find_stack
from inferometer.hardware.catalogue import find_device, match_driver_name
from inferometer.model.description import describe
from inferometer.model.formats import Formats, weight_format
from inferometer.model.step import Step, decode_equal, prefill

STEPS: dict[str, tuple[str, Step]] = {
    "decode 1": ("decode, batch 1, context 128, ms", decode_equal(1, 128)),
    "decode 16": ("decode, batch 16, context 128, ms", decode_equal(16, 128)),
    "prefill": ("prefill of 16 x 1024, ms", prefill(16, 1024)),
    "kv": ("decode, batch 48, context 1,900, the cache in 8 bits, ms", decode_equal(48, 1900)),
}
MEANS = (
    f"{MODEL} with dummy weights, bfloat16 activations. Gates are times as fast as bfloat16 at least, or of its bytes at most. "
    "`predicted_ms` is what the estimator says, `bound_ms` the least that the device could take by its datasheet."
)


def rows(raw: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a format of each measurement, in the order of the gates."""
    found = {(record["measured"], record["format"]): record for record in raw}
    first = next(iter(found.values()))
    environment = {name: value for name, value in first["environment"].items() if name != "sensors"}
    card = first["device_name"]
    about = {"means": MEANS, "device_name": card, "environment": environment}
    made: list[dict[str, Any]] = []
    for measured, (title, step) in STEPS.items():
        base = found.get((measured, "bf16"))
        for name in FORMATS:
            record = found.get((measured, name))
            if record is None or base is None:
                continue
            run = deployment(card, name, cache=measured == "kv")
            gate, gain = GATES[measured].get(name), base["ms"] / record["ms"]
            made.append({
                "measured": title, "format": name, "ms": record["ms"], "predicted_ms": run.cost(step).ms, "bound_ms": run.bound(step).ms,
                "times_bf16": gain, "gate": gate, "kept": None if gate is None else gain >= gate,
            })  # fmt: skip
    base = found.get(("bytes", "bf16"))
    for name in FORMATS if base is not None else ():
        if (record := found.get(("bytes", name))) is not None:
            most, part = BYTES.get(name), record["weight_bytes"] / base["weight_bytes"]
            made.append({
                "measured": "weights in memory", "format": name, "gigabytes": record["weight_bytes"] / 1e9, "times_bf16": part,
                "gate": most, "kept": None if most is None else part <= most,
            })  # fmt: skip
    ours, theirs = found.get(("decode 1", "int8")), found.get(("decode 1", HF))
    if ours is not None and theirs is not None:
        gain = theirs["ms"] / ours["ms"]
        made.append({
            "measured": "transformers with bitsandbytes LLM.int8, decode, batch 1, context 128", "ms": theirs["ms"], "ours_ms": ours["ms"],
            "ours_is_faster": gain, "gate": TIMES_HF, "kept": gain >= TIMES_HF, "version": theirs["stack_version"],
        })  # fmt: skip
    return [{**row, **about} if not i else row for i, row in enumerate(made)]


def deployment(device_name: str, name: str, *, cache: bool) -> Deployment:
    """The model on the device, its matrices in a format, or its cache."""
    device = find_device(match_driver_name(device_name) or device_name)
    narrow = None if name == "bf16" else name
    weights = None if narrow is None or cache else weight_format(narrow, "bfloat16")
    formats = Formats(dtype="bfloat16", weights=weights, kv_dtype=narrow if cache else None)
    return Deployment(
        spec=describe(MODEL).spec,
        device=device,
        stack=find_stack("native"),
        layout=Layout(),
        formats=formats,
        limits=limits(device),
        power=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    lines = [line for path in options.raw for line in path.read_text().splitlines()]
    options.output.write_text("".join(json.dumps(row) + "\n" for row in rows(map(json.loads, lines))))


if __name__ == "__main__":
    main()
