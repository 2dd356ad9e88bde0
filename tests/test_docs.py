"""What the pages say can be typed: their commands parse, their flags, files and routes exist, and what they show is what is printed."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferometer.cli.main import COMMANDS, parser
from inferometer.errors import UserError
from inferometer.estimate.stack import STACKS
from inferometer.hardware.catalogue import slugs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
PAGE_OF = {command: f"{command}.md" for command in COMMANDS} | {"study": "studies.md"}
# Flags of other programs that the pages name.
ELSEWHERE = {"--nnodes", "--nproc-per-node", "--node-rank", "--check", "--add", "--only", "--suggest"}

# Files of a user's, and what a run writes.
WRITTEN = {"study.toml", "mine.toml", "records.jsonl", "tables.md", "records.1.jsonl", "results"}


def blocks(text: str) -> Iterator[str]:
    """What stands between fences, lines that go on in the next one joined."""
    for found in re.finditer(r"(?ms)^```\w*\n(.*?)^```$", text):
        yield found[1].replace("\\\n", " ")


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `inferometer` of every command in the text's blocks, up to a pipe, a redirection or a comment."""
    for block in blocks(text):
        for line in block.splitlines():
            if not re.match(r"(\$ |[\w-]+\$ )?([A-Z_]+=\S+ )*(echo .* \| |torchrun .* -m )?inferometer ", line):
                continue
            reader = shlex.shlex(line.partition("inferometer ")[2], posix=True, punctuation_chars="|<>&;")
            reader.whitespace_split = True
            words = list(reader)
            yield words[: next((place for place, word in enumerate(words) if set(word) <= set("|<>&;")), len(words))]


def each(find: str) -> list[pytest.ParameterSet]:
    return [pytest.param(page, id=page.name) for page in PAGES if re.search(find, page.read_text("utf-8"))]


def options(known: argparse.ArgumentParser) -> set[str]:
    """All flags of a parser and of the parsers below it."""
    below = [action for action in known._actions if isinstance(action, argparse._SubParsersAction)]
    return set(known._option_string_actions).union(*(options(each) for action in below for each in action.choices.values()))


def test_commands_are_found_wherever_they_stand() -> None:
    text = "$ inferometer estimate x \\\n    --gpus 2  # why\nA=b echo 'x' | inferometer generate > y\ninferometer: error: no\n"
    text = f"```\n{text}```\ninferometer z\n"
    assert list(commands(text)) == [["estimate", "x", "--gpus", "2"], ["generate"]]
    assert sum(len(list(commands(page.read_text("utf-8")))) for page in PAGES) > 60


@pytest.mark.parametrize("page", each(r"(?m)^(\$ )?([A-Z_]+=\S+ )*inferometer "))
def test_every_command_parses(page: Path) -> None:
    for words in commands(page.read_text("utf-8")):
        try:
            parser(words[0]).parse_args(words)
        except UserError as error:
            pytest.fail(f"inferometer {shlex.join(words)}: {error}")


def test_a_command_with_a_wrong_flag_does_not_parse() -> None:
    with pytest.raises(UserError, match="--batch-sizes"):
        parser("bench").parse_args(["bench", "--batch-sizes", "1"])


@pytest.mark.parametrize("page", each(r"`--"))
def test_every_flag_exists(page: Path) -> None:
    known = ELSEWHERE.union(*(options(parser(command)) for command in COMMANDS))
    prose = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", " ".join(re.findall(r"`[^`]*`", prose))))
    assert named - known == set()


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_every_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    links = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target} - {""}
    assert {target for target in links if not (page.parent / target).exists()} == set()
    # By the path from the root, or of a file or folder of the package by the end of its path.
    named = set(re.findall(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.(?:py|toml|h|cpp|md|jsonl))`|`((?:[a-z0-9_]+/)+)`", text))
    named = {file or folder.rstrip("/") for file, folder in named} | set(re.findall(r"benchmarks/[\w/]+\.\w+", text))
    there = [f"/{path.relative_to(ROOT / 'src')}" for path in (ROOT / "src").rglob("*") if "__pycache__" not in path.parts]
    there += [f"/{path.name}" for path in (ROOT / "benchmarks").iterdir()]
    missing = {name for name in named if not (ROOT / name).exists() and not any(path.endswith(f"/{name}") for path in there)}
    assert missing - WRITTEN == set()


def test_every_name_of_the_architecture_is_one_of_the_code() -> None:
    source = " ".join(path.read_text("utf-8") for kind in ("py", "toml", "cpp", "h") for path in (ROOT / "src").rglob(f"*.{kind}"))
    known = set(re.findall(r"\w+", source)) | {path.stem for below in ("src", "tests", "benchmarks") for path in (ROOT / below).rglob("*")}
    prose = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    spoken = [found for found in re.findall(r"`([^`]+)`", prose) if "*" not in found]  # names of many files have a star
    named = {word for found in spoken for word in re.findall(r"[A-Za-z_]\w+", found)}
    assert len(named) > 200
    assert named - known - {"inferometer", "md"} == set()


def test_every_command_has_a_page_which_the_readme_leads_to() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for command, page in PAGE_OF.items():
        assert (ROOT / "docs" / page).exists(), command
        assert f"inferometer {command}" in (ROOT / "docs" / page).read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in readme, page.name


def test_what_the_pages_show_is_what_is_printed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "doc_output.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_page_is_named_and_mended(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    script = tmp_path / "benchmarks" / "doc_output.py"
    script.write_bytes((ROOT / "benchmarks" / "doc_output.py").read_bytes())
    page = tmp_path / "docs" / "page.md"
    page.write_text("Before.\n\n<!-- run: 2 -->\n```\n$ inferometer study list\nold\n```\n\nBehind.\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)

    assert "docs/page.md is stale" in run("--check").stderr
    assert run().returncode == 0
    lines = page.read_text().split("\n")
    assert (lines[:4], lines[-5:]) == (["Before.", "", "<!-- run: 2 -->", "```"], ["...", "```", "", "Behind.", ""])
    assert lines[5].startswith("| study ")
    assert run("--check").returncode == 0


def test_what_the_pages_count_is_as_many() -> None:
    said = [number for page in ("README.md", "CHANGELOG.md") for number in re.findall(r"(\d+) stacks\b", (ROOT / page).read_text("utf-8"))]
    assert set(said) == {str(len(STACKS))}
    devices = re.findall(r"(\d+) devices\b", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert devices == [str(len(slugs()) - 1)]  # the CPU is this machine's
