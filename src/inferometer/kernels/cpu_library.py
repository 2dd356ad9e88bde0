"""The kernels for CPUs, in C++: compiled on the machine that runs them when they are first wanted, and kept in the cache folder.

They are optional. Where there is no compiler, or it fails, torch's own operations do the same work.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

from inferometer.model.scratch import scratch_beside
from inferometer.model.store import cache_dir

SOURCES: Final = Path(__file__).parent / "cpu"
FLAGS: Final = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w")
TIMEOUT_S: Final = 120
"""After which a compiler is given up: it takes ten to twenty seconds."""


class OpenMP(ctypes.Structure):
    """The threads of the OpenMP that torch runs on: a second one beside it would fight with it for the cores."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("wanted", ctypes.c_int32),
    )


class CpuLibrary:
    """The compiled kernels. most_tokens: the most rows that they take. matrix_units: whether libraries may have units here for products of
    whole matrices of bfloat16.

    run_sweep, run_part, run_linear, run_greedy, scratch_bytes: as `cpu/library.cpp` declares them.
    """

    def __init__(self, path: Path) -> None:
        library, torch_library = ctypes.CDLL(str(path)), ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        # Asked of torch's library, its dependencies answer too, whichever OpenMP that build brings.
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        self._openmp = [ctypes.cast(torch_library[name], ctypes.c_void_p) for name in names]
        pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        library.most_tokens.restype = library.scratch_bytes.restype = number
        library.scratch_bytes.argtypes = (pointer, pointer)
        library.run_sweep.argtypes = (pointer, pointer, pointer)
        library.run_part.argtypes = (pointer, pointer, number, pointer)
        library.run_linear.argtypes = (pointer, flag, number, pointer, pointer, pointer)
        library.run_greedy.argtypes = (flag, number, number, pointer, pointer, pointer, pointer)
        library.run_sweep.restype = library.run_part.restype = library.run_linear.restype = library.run_greedy.restype = None
        self.most_tokens: int = library.most_tokens()
        self.matrix_units = bool(library.matrix_units())
        self.scratch_bytes: Callable[..., int] = library.scratch_bytes
        self.run_sweep: Callable[..., None] = library.run_sweep
        self.run_part: Callable[..., None] = library.run_part
        self.run_linear: Callable[..., None] = library.run_linear
        self.run_greedy: Callable[..., None] = library.run_greedy

    def openmp(self) -> OpenMP:
        """As many threads as torch uses now."""
        return OpenMP(*self._openmp, torch.get_num_threads())


@lru_cache(maxsize=1)
def cpu_library() -> CpuLibrary | None:
    """The kernels of this machine, compiled if need be, which a line on stderr says; None where that cannot be done, which without a
    compiler is as it has to be, and else another line says.

    A first time takes ten to twenty seconds. Of several processes one compiles, and the others wait for it.
    """
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        path = _path(compiler)
        found = _loaded(path)
        if found is not None:
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))
        with _turn(path.parent):
            found = _loaded(path)
            if found is not None:
                return found
            _tell("compiling kernels for this CPU, once (some 20 s)")
            return _made(compiler, path)
    except AttributeError:  # a torch that runs on an OpenMP of another kind
        return None
    except OSError as error:
        remedy = "torch's own operations do their work, slower; set INFEROMETER_HOME to a folder that can be written"
        _tell(f"warning: no kernels for this CPU: {error.filename}: {error.strerror}; {remedy}")
        return None


def _loaded(path: Path) -> CpuLibrary | None:
    """None where there is no file, a damaged one, or one for another system."""
    try:
        return None if _cut_off(path) else CpuLibrary(path)
    except OSError:
        return None


def _cut_off(path: Path) -> bool:
    """Whether a library lacks its end, as a disk that was full, or lost power, may leave it: to load it would end this process by a signal.

    Of ELF, whose linkers put the table of sections last. Raises OSError.
    """
    with path.open("rb") as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return False  # the loader looks at what else it may be
    order = "<" if head[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", head, 0x28)
    entry_bytes, entries = struct.unpack_from(f"{order}HH", head, 0x3A)
    return bool(table + entry_bytes * entries > size)


def _made(compiler: Sequence[str], path: Path) -> CpuLibrary | None:
    """Compiled now; None, with a line on stderr, where that fails."""
    try:
        build(compiler, path)
        return CpuLibrary(path)
    except (OSError, subprocess.SubprocessError):
        _tell(f"warning: {compiler[0]} could not compile them; torch's own operations do their work, slower")
        return None


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Holds the folder against other processes that would compile the same. Where no lock is to be had, as on some network's, all go."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _tell(line: str) -> None:
    """On the standard error, where it takes something."""
    with suppress(OSError):
        print(f"inferometer: {line}", file=sys.stderr, flush=True)


def _compiler() -> list[str] | None:
    """The command that compiles C++: CXX, or what the system calls so."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]) is not None:
            return command
    return None


def _path(compiler: list[str]) -> Path:
    """Where the library lies: by everything that it depends on, as a home may be shared between machines."""
    told = hashlib.sha256()
    for part in (*compiler, *FLAGS, platform.machine(), _processor()):
        told.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".h", ".cpp"):
            told.update(source.read_bytes())
    return cache_dir() / "kernels" / f"cpu-{told.hexdigest()[:16]}.so"


def _processor() -> str:
    """The processor as the compiler sees it: the instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name", "cpu family", "model\t"))}))


def build(compiler: Sequence[str], path: Path, target: str | None = None) -> None:
    """Compiles into a folder of its own first, so that another process never sees half a library.

    target: the compiler's flag for the processor to compile for; None for this one.
    Raises OSError or subprocess.SubprocessError where that fails.
    """
    if target is None:
        target = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    # Beside a name that all libraries share: one of these sources, whose compiling was ended, is never compiled again once they change.
    with scratch_beside(path.with_name("cpu")) as scratch:
        made = scratch / path.name
        command = [*compiler, *FLAGS, target, str(SOURCES / "library.cpp"), "-o", str(made)]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=TIMEOUT_S)
        made.replace(path)
