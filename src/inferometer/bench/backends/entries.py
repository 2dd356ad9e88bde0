"""The backends that come with the package. Another package adds its own under the entry points `inferometer.backends`."""

from __future__ import annotations

from typing import Final

from inferometer.bench.backends.entry import BackendEntry
from inferometer.bench.backends.requirement import Requirement
from inferometer.model.formats import KEPT_HEAD_FORMATS, NARROW_KV_DTYPES, ROUNDED_FORMATS
from inferometer.schedule.admission import ADMISSIONS

_TORCH: Final = Requirement(module="torch", install="inferometer[run]")
_TRANSFORMERS: Final = Requirement(module="transformers", install="inferometer[hf]")
# LLM.int8 under its package's name; "int8" is what the published tables call it, and there is no other on this stack.
_LLM_INT8: Final = ("bitsandbytes", "int8")
_BITSANDBYTES: Final = Requirement(module="bitsandbytes", install="bitsandbytes", quantize=_LLM_INT8)

NATIVE: Final = BackendEntry(
    name="native",
    opener="inferometer.bench.backends.native:open_backend",
    stack="native",
    requirements=(_TORCH,),
    quantize=(*ROUNDED_FORMATS, *KEPT_HEAD_FORMATS, "bitsandbytes"),
    kv_dtypes=NARROW_KV_DTYPES,
    admissions=ADMISSIONS,
    deterministic=True,
    watermark=True,
    memory_limit=True,
    decode_at=True,
    tensor_parallel=True,
    stored=True,
)

HF: Final = BackendEntry(
    name="hf",
    opener="inferometer.bench.backends.hf:open_backend",
    stack="hf-eager",
    requirements=(_TRANSFORMERS, _BITSANDBYTES),
    quantize=_LLM_INT8,
    decode_at=True,
    reference=True,
)

HF_COMPILE: Final = BackendEntry(
    name="hf-compile",
    opener="inferometer.bench.backends.hf_compile:open_backend",
    stack="hf-compile",
    requirements=(_TRANSFORMERS,),
    encoders=False,
    forward_only=False,
    decode_at=True,
)

DEEPSPEED: Final = BackendEntry(
    name="deepspeed",
    opener="inferometer.bench.backends.deepspeed:open_backend",
    stack="deepspeed",
    requirements=(
        Requirement(module="deepspeed", install="deepspeed"),
        _TRANSFORMERS,
        # What DeepSpeed itself says of its kernels for BLOOM.
        Requirement(module="transformers", install="transformers<=4.43.4", newest="4.43.4", families=("bloom",)),
    ),
)

FLEXGEN: Final = BackendEntry(
    name="flexgen",
    opener="inferometer.bench.backends.flexgen:open_backend",
    stack="flexgen",
    requirements=(
        Requirement(module="flexgen", install="flexgen"),
        _TRANSFORMERS,
        # Two packages that it imports and does not ask for.
        Requirement(module="attr", install="attrs"),
        Requirement(module="tqdm", install="inferometer[run]"),
    ),
    dtypes=("float16",),
    admissions=("zigzag",),
    devices=("cuda",),
    families=("opt",),
    samples=False,
    forward_only=False,
)

HTTP: Final = BackendEntry(
    name="http",
    opener="inferometer.bench.serving.http_benchmark:http_benchmark",
    stack=None,
    samples=False,
    forward_only=False,
    in_process=False,
)

ENTRIES: Final = (NATIVE, HF, HF_COMPILE, DEEPSPEED, FLEXGEN, HTTP)
