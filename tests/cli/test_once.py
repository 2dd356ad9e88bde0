"""An option with a value is given once, in every command; which may be given again say so."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from inferometer.cli.main import COMMANDS, main, parser
from inferometer.cli.parser import Once


def options() -> Iterator[tuple[str, argparse.Action]]:
    """Every option of every command that takes a value, with the command's name."""
    for name in COMMANDS:
        yield from _of(parser(name), name)


def _of(found: argparse.ArgumentParser, wanted: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                if name == wanted or found.prog != "inferometer":
                    yield from _of(below, wanted)
        elif action.option_strings and action.nargs != 0:
            yield found.prog, action


def test_what_may_be_repeated_says_so_and_all_else_may_not() -> None:
    found = list(options())
    assert len(found) > 100
    for prog, action in found:
        repeated = isinstance(action, argparse._AppendAction)
        assert repeated or isinstance(action, Once), (prog, action.option_strings)
        assert repeated == ("repeatable" in (action.help or "")), (prog, action.option_strings)


@pytest.mark.parametrize(
    "line",
    [
        "generate --model a --model b x",
        "generate --percent 1 2 3 4 5 6 --percent 1 2 3 4 5 6 x",
        "serve --port 1 --port 2",
        "bench --runs 1 --runs 1",
        "study run backend-sweep --scale tiny --scale full",
        "study show backend-sweep --format md --format rst",
        "estimate opt-125m --device l4 --device t4",
        "validate --regime 002 --regime 003",
        "quantize --quantize int8 --quantize int8 -o a",
        "quantize --quantize int8 -o a --output b",
        "quality --file a --file b",
        "report a --title b --title c",
        "devices --calibrate --seconds 1 --seconds 2",
    ],
)
def test_a_second_value_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is given twice; inferometer " in err


def test_a_list_says_where_its_values_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--records", "a", "--records", "b"]) == 2
    assert "put all its values behind one --records" in capsys.readouterr().err


def test_a_switch_and_what_is_repeatable_may_come_again_and_so_may_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = parser("bench").parse_args(["bench", "--json", "--json", "--batch-size", "1", "--batch-size", "2"])
    assert (found.json, found.batch_size) == (True, [1, 2])
    known = parser("devices")
    for _ in range(2):
        assert known.parse_args(["devices", "--calibrate", "--seconds", "2"]).seconds == 2
