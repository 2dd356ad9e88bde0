"""Small studies as text, and read."""

from __future__ import annotations

from inferometer.bench.study.file import StudyFile, read_study

STUDY = """\
title = "Two stacks"

[fixed]
model = "tiny-opt"
weights = "dummy"
dtype = "float32"
device = "cpu"
sequence_length = 4
decode_length = 3
runs = 2
warmups = 1

[[part]]
name = "sweep"

[part.axes]
batch_size = [1, 2, 4]

[[part.columns]]
name = "one"
backend = "native"

[[part.columns]]
name = "other"
backend = "hf"

[[part.exclude]]
column = "other"
batch_size = [4]
reason = "too slow there"

[scale.tiny]
fixed = { runs = 1 }

[scale.tiny.parts.sweep.axes]
batch_size = [1]
"""


def study(batches: str = "[1, 2]", *, model: str = "gpt3-1.3b", runs: int = 4, more: str = "", columns: str = "") -> str:
    """Two columns over batch sizes, on a card."""
    columns = columns or '[[part.columns]]\nname = "a"\nbackend = "native"\n[[part.columns]]\nname = "b"\nbackend = "hf"\n'
    return f"""
title = "t"
[fixed]
model = "{model}"
weights = "dummy"
dtype = "float16"
device = "cuda"
sequence_length = 8
decode_length = 5
runs = {runs}
warmups = 1
{more}
[[part]]
name = "p"
[part.axes]
batch_size = {batches}
{columns}
"""


def study_file(text: str = STUDY) -> StudyFile:
    """As it is read."""
    return read_study(text, "mine", "mine.toml")
