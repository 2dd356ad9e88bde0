"""A small study as text, and stand-ins for what runs it."""

from __future__ import annotations

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
