"""The files of a batch job: what is read is prompts or a mistake in a line, and what is written stays whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import SamplingParams
from inferometer.engine.job.prompt_file import read_prompts
from inferometer.engine.job.result_file import ResultFile
from inferometer.errors import UserError


def test_two_jobs_do_not_write_to_one_file(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out", "j", 3) as first:
        with pytest.raises(UserError, match="another process is writing there"):
            ResultFile(tmp_path / "out", "j", 3)
        first.append(1, {"text": "a"})
    with ResultFile(tmp_path / "out", "j", 3) as again:
        assert again.done == {1}


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=5), cut=st.integers(0, 400))
def test_a_result_file_forgets_no_whole_line(tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "out"
    with ResultFile(path, "job", len(texts)) as file:
        for index, text in enumerate(texts):
            file.append(index, {"text": text.encode(errors="replace").decode()})
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - cut, 0)])
    lines = whole[: max(len(whole) - cut, 0) + 1].count(b"\n")
    with ResultFile(path, "job", len(texts)) as file:
        assert file.done == set(range(lines))
        for index in range(lines, len(texts)):
            file.append(index, {"text": texts[index].encode(errors="replace").decode()})
    assert path.read_bytes() == whole


@given(content=st.binary(max_size=200))
def test_any_bytes_are_prompts_or_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "prompts"
    path.write_bytes(content)
    with suppress(UserError):
        read_prompts(path, SamplingParams())
