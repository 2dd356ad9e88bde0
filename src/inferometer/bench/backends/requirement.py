"""What a backend needs installed, and whether a Python has it. Without torch, and without importing what is asked about."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile

from inferometer.errors import UserError

# Finds a module without importing it, and asks for the version of the package of that name.
_LOOK = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(package):
    try: return m.version(package)
    except m.PackageNotFoundError: return ""
def there(module):
    try: return u.find_spec(module) is not None
    except (ImportError, ValueError): return False
print(json.dumps({n: version(n.replace("_", "-")) if there(n) else None for n in sys.argv[1:]}))
"""
_LOOK_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that a backend runs on.

    module: its import name. install: what pip is told. newest: the last version that serves, None for any. families, quantize: the
    models and weight formats that need it; None for all.
    """

    module: str
    install: str
    newest: str | None = None
    families: tuple[str, ...] | None = None
    quantize: tuple[str, ...] | None = None

    def concerns(self, *, family: str | None, quantize: str | None) -> bool:
        """Whether a case of such a model and format needs it; a family that is not known yet may be any other."""
        return (self.families is None or family in self.families) and (self.quantize is None or quantize in self.quantize)

    def unmet(self, found: str | None) -> str | None:
        """Why the version that was `found` does not serve (None: no package, "": one that does not tell its version); None if it does."""
        if found is None:
            return f"needs {self.module}, which is not installed; pip install '{self.install}'"
        if self.newest is not None and found and _numbers(found) > _numbers(self.newest):
            return f"needs {self.module} {self.newest} or older, and {found} is installed; pip install '{self.install}'"
        return None


def versions(modules: Sequence[str], python: str) -> Mapping[str, str | None]:
    """For each module its version in that Python, "" if it does not tell, None if it is not there.

    Raises UserError for a Python that does not run.
    """
    if python == sys.executable:
        return {module: _version(module) for module in modules}
    return _versions_elsewhere(tuple(modules), python)


def _version(module: str) -> str | None:
    try:
        if module not in sys.modules and find_spec(module) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


@cache
def _versions_elsewhere(modules: tuple[str, ...], python: str) -> Mapping[str, str | None]:
    command = [python, "-c", _LOOK, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=True, stdin=subprocess.DEVNULL)
        found: dict[str, str | None] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(f"{python} is not a Python that runs ({type(error).__name__}); name another one") from error
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (4, 43, 4) of "4.43.4+cu121"."""
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in takewhile(str.isdecimal, parts))
