"""The backends that come with the package. Another package adds its own under the entry points `inferometer.backends`."""

from __future__ import annotations

from typing import Final

from inferometer.bench.entry import BackendEntry
from inferometer.bench.requirement import Requirement
from inferometer.schedule.admission import ADMISSIONS

_TORCH: Final = Requirement(module="torch", install="inferometer[run]")
_TRANSFORMERS: Final = Requirement(module="transformers", install="inferometer[hf]")

NATIVE: Final = BackendEntry(
    name="native",
    opener="inferometer.bench.native:open_backend",
    stack="native",
    requirements=(_TORCH,),
    admissions=ADMISSIONS,
    deterministic=True,
    watermark=True,
    memory_limit=True,
    decode_at=True,
)

HF: Final = BackendEntry(
    name="hf",
    opener="inferometer.bench.hf:open_backend",
    stack="hf-eager",
    requirements=(_TRANSFORMERS,),
    decode_at=True,
    reference=True,
)

HF_COMPILE: Final = BackendEntry(
    name="hf-compile",
    opener="inferometer.bench.hf_compile:open_backend",
    stack="hf-compile",
    requirements=(_TRANSFORMERS,),
    encoders=False,
    forward_only=False,
    decode_at=True,
)

HTTP: Final = BackendEntry(
    name="http",
    opener="inferometer.bench.http_benchmark:http_benchmark",
    stack=None,
    samples=False,
    forward_only=False,
    in_process=False,
)

ENTRIES: Final = (NATIVE, HF, HF_COMPILE, HTTP)
