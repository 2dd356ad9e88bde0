"""The studies that come with the package, and a user's own by path."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from inferometer.bench.study.file import StudyFile, read_study
from inferometer.bench.study.settings import did_you_mean
from inferometer.errors import UserError, shown


def shipped() -> Mapping[str, StudyFile]:
    """The studies of the package by name, in the order of the documents that they reproduce."""
    folder = resources.files("inferometer.bench.study") / "shipped"
    found = {}
    for entry in folder.iterdir():
        name, dot, suffix = entry.name.rpartition(".")
        if dot and suffix == "toml":
            found[name] = read_study(entry.read_text(encoding="utf-8"), name, f"study {name}")
    return dict(sorted(found.items(), key=lambda item: (item[1].study().document or "~", item[0])))


def find_study(name: str) -> StudyFile:
    """The study of that name, or in the file of that path. Raises UserError for one that is not there or not a study."""
    path = Path(name).expanduser()
    if path.suffix == ".toml" or path.is_file():
        return _read(path, name)
    known = shipped()
    if name in known:
        return known[name]
    if path.is_dir():
        raise UserError(f"{name} is a folder; name a study, a study's TOML file, or the study.toml in the folder of a run")
    raise UserError(f"no study {shown(name)}{did_you_mean(name, known)} (one of your own is named by its file, as in ./{name}.toml)")


def _read(path: Path, name: str) -> StudyFile:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark of byte order in front, which is no TOML
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; name a study or a study's TOML file") from error
    except UnicodeDecodeError:
        raise UserError(f"{name} is not text in UTF-8, which TOML is") from None
    return read_study(text, path.stem, name)
