"""Which run of which code on which machine a record comes from: what tells whether records may stand in one table."""

from __future__ import annotations

import hashlib
import platform
import secrets
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from inferometer import __version__
from inferometer.hardware.detect import Machine

FACTS: Final = ("machine", "revision", "session")
_SOURCES: Final = frozenset({".py", ".toml", ".cpp", ".h", ".cu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One `study run`. `machine` is equal for the same hardware and driver, `revision` for the same source files of this package."""

    session: str
    machine: str
    revision: str

    @classmethod
    def begin(cls, machine: Machine) -> Session:
        """A session of now, on `machine`."""
        return cls(session=secrets.token_hex(4), machine=machine.fingerprint, revision=revision())

    @property
    def facts(self) -> dict[str, str]:
        """For a record's environment."""
        return {name: getattr(self, name) for name in FACTS}


def revision() -> str:
    """Twelve hexadecimal digits of this package's source files: the same wherever they lie, another after any change to them."""
    root = Path(str(files("inferometer")))
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def bare_environment() -> dict[str, Any]:
    """What is known of the software without loading any of it, for a record of a case that did not run."""
    return {
        "inferometer": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "transformers")},
        "platform": f"{platform.system()}-{platform.machine()}",
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
