"""The catalogue of devices: a slug, or a user's TOML file, to its datasheet."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from inferometer.errors import UserError
from inferometer.hardware.device import DeviceSpec
from inferometer.hardware.device_file import read_device, read_device_file

CPU = "cpu"


@cache
def catalogue() -> Mapping[str, DeviceSpec]:
    """Every catalogued device by slug, in the order of the file. This machine (`cpu`) is not among them: it has no datasheet."""
    return {slug: read_device(values, slug, f"catalogue.toml: {slug}") for slug, values in _tables().items()}


def slugs() -> tuple[str, ...]:
    """What a `--device` flag accepts besides a file."""
    return (*_tables(), CPU)


def find_device(device: str) -> DeviceSpec:
    """The device of a slug or of the name that its driver shows, in any case; of `cpu` (this machine); or of a TOML file.

    Raises UserError naming the slug and the nearest known ones, or the file and the key that is wrong.
    """
    if device == CPU:
        from inferometer.hardware.detect import cpu_device

        return cpu_device()
    tables = _tables()
    slug = device.casefold() if device.casefold() in tables else match_driver_name(device)
    if slug is not None:
        return read_device(tables[slug], slug, f"catalogue.toml: {slug}")
    if device.endswith(".toml") or "/" in device:
        return read_device_file(Path(device), _table)
    raise _unknown(device)


def match_driver_name(name: str, memory_bytes: int | None = None) -> str | None:
    """The slug of the card that a driver calls `name`; None if the catalogue has none.

    Cards of one name and two memory sizes exist (RTX 3080), so a total that is off by more than a tenth is another card.
    """
    wanted = _normal(name)
    for device in catalogue().values():
        if wanted not in {_normal(known) for known in device.driver_names}:
            continue
        share = device.usable_memory_bytes / device.driver_devices
        if memory_bytes is None or abs(memory_bytes / share - 1) <= 0.1:
            return device.slug
    return None


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(files("inferometer.hardware").joinpath("catalogue.toml").read_text("utf-8"))


def _table(slug: str) -> Mapping[str, Any]:
    if slug not in _tables():
        raise _unknown(slug)
    return _tables()[slug]


def _unknown(device: str) -> UserError:
    wanted = device.casefold().replace("_", "-").replace(" ", "-")
    # `h100` is meant for one of the H100s, though `h200` has more letters in common.
    near = [slug for slug in slugs() if wanted and slug.startswith(wanted)] or get_close_matches(wanted, slugs(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UserError(
        f"{device or repr(device)}: no such device; {hint}`inferometer devices` lists them, and a TOML file describes one of your own"
    )


def _normal(name: str) -> str:
    return " ".join(name.split()).casefold()
