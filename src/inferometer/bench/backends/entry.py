"""What is known of a backend before it is opened: what it needs, what it refuses, how it is priced. Without torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from inferometer import __version__
from inferometer.bench.backends.requirement import Requirement, versions
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES, KEPT_HEAD, full_name, stored_method

if TYPE_CHECKING:
    from inferometer.bench.backends.backend import Backend
    from inferometer.bench.backends.opening import Opening
    from inferometer.bench.backends.request import BenchRequest
    from inferometer.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """A backend as it is registered, under the entry points `inferometer.backends`.

    opener: "module:function" of a function that takes an Opening and returns a Backend; imported when one is opened, in the process that
    will run it. That of a server takes what `benchmark` takes, and returns the records. stack: how the estimator prices it
    (estimate/stacks.toml), None if it cannot. requirements: the first names the stack.
    What follows is what it takes of a request: values of --dtype, --quantize, --kv-dtype, --admission and --device, families of models, and
    whether it has --deterministic, --watermark, random sampling, --forward-only, --gpu-memory, --decode-at and --tensor-parallel.
    reference: whether others may be checked against it. stored: whether it multiplies by the few bits of GPTQ, AWQ and compressed-tensors
    checkpoints, and of `inferometer quantize`; the others would read the plain weights that those stand for, another case. in_process:
    whether the model runs in the process that opens it; the only other kind is a server that answers over HTTP.
    """

    name: str
    opener: str
    stack: str | None
    requirements: tuple[Requirement, ...] = ()
    dtypes: tuple[str, ...] = COMPUTE_DTYPES
    quantize: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    admissions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    families: tuple[str, ...] | None = None
    encoders: bool = True
    deterministic: bool = False
    watermark: bool = False
    samples: bool = True
    forward_only: bool = True
    memory_limit: bool = False
    decode_at: bool = False
    tensor_parallel: bool = False
    reference: bool = False
    stored: bool = False
    in_process: bool = True

    @property
    def python_variable(self) -> str:
        """The environment variable that names the Python it runs under, where that is not this one."""
        return f"INFEROMETER_PYTHON_{self.name.upper().replace('-', '_')}"

    @property
    def python(self) -> str:
        """The Python it runs under: that of INFEROMETER_PYTHON_<NAME>, else this one. It needs to see this package too."""
        return os.environ.get(self.python_variable) or sys.executable

    def missing(self, request: BenchRequest | None = None, spec: ModelSpec | None = None) -> str | None:
        """The package that is not installed, or not in a version that serves, and how to get it; None where nothing is missing.

        Without a request, only what every case needs counts. Raises UserError where `python` does not run.
        """
        family, quantize = None if spec is None else spec.family, None if request is None else request.quantize
        needed = [each for each in self.requirements if each.concerns(family=family, quantize=quantize)]
        found = versions([each.module for each in needed], self.python)
        for each in needed:
            reason = each.unmet(found[each.module])
            if reason is not None:
                where = "" if self.python == sys.executable else f" (in {self.python}, of {self.python_variable})"
                apart = "" if each.newest is None else f"; or in a Python of its own, named by {self.python_variable}"
                return f"--backend {self.name} {reason}{apart}{where}"
        return None

    def version(self) -> str | None:
        """The version of the package that gives the stack its name; None where it is not installed."""
        if self.name == "native":
            return __version__
        if not self.requirements:
            return None
        module = self.requirements[0].module
        return versions([module], self.python)[module]

    def refusal(
        self, request: BenchRequest, *, spec: ModelSpec | None = None, device: str | None = None, rounded: bool = False
    ) -> str | None:
        """Why the backend does not run such a request, in one line that names the option and the remedy; None if it does.

        spec: the model, where it is known; device: "cpu" or "cuda", where that is; rounded: whether its checkpoint is one that
        `inferometer quantize` wrote. What no backend could do, `BenchRequest.check` says.
        """
        for flag, takes in (("deterministic", self.deterministic), ("watermark", self.watermark), ("forward_only", self.forward_only)):
            if getattr(request, flag) and not takes:
                return self._without(flag)
        dtype = DTYPE_ALIASES.get(request.dtype, request.dtype)
        if dtype in COMPUTE_DTYPES and dtype not in self.dtypes:
            return f"--dtype {request.dtype} is not run by --backend {self.name}; use --dtype {' or '.join(self.dtypes)}"
        if request.kv_dtype != "auto" and request.kv_dtype not in self.kv_dtypes:
            instead = f"use --kv-dtype {' or '.join(self.kv_dtypes)}, or none" if self.kv_dtypes else "leave one of them out"
            return f"--kv-dtype {request.kv_dtype} is not run by --backend {self.name}; {instead}"
        if request.decode_only and request.kv_dtype != "auto":
            return "--decode-at fills a cache of the activations' type; leave --kv-dtype out"
        stored = method = stored_method(request.quantize)
        if rounded:
            method = f"{request.quantize} from inferometer quantize"
        if method is not None and not self.stored:
            whose = "the checkpoint's" if spec is None else f"{spec.name}'s"
            return (
                f"{whose} weights are in few bits of {method}, which --backend {self.name} would measure widened to plain ones; "
                "use --backend native, or the checkpoint before quantisation"
            )
        if stored is None and request.quantize is not None and full_name(request.quantize) not in self.quantize:
            named = " or ".join(name for name in self.quantize if not name.endswith(KEPT_HEAD))
            instead = f"use --quantize {named}, or none" if self.quantize else "leave one of them out"
            return f"--quantize {request.quantize} is not run by --backend {self.name}; {instead}"
        if request.admission is not None and request.admission not in self.admissions:
            return self._without("admission")
        if request.samples and not self.samples:
            return f"--backend {self.name} takes the likeliest token; leave out --do-sample and the options that go with it"
        if request.gpu_memory is not None and not self.memory_limit:
            return f"--gpu-memory is not kept by --backend {self.name}; leave one of them out"
        if request.decode_only and not self.decode_at:
            return f"--decode-at fills a cache, which --backend {self.name} has no way to; leave one of them out"
        if request.tensor_parallel > 1 and not self.tensor_parallel:
            return f"--tensor-parallel {request.tensor_parallel} is not run by --backend {self.name}; use --backend native, or leave it out"
        return self._refused_model(request, spec, device)

    def _refused_model(self, request: BenchRequest, spec: ModelSpec | None, device: str | None) -> str | None:
        if spec is not None and self.families is not None and spec.family not in self.families:
            return f"--backend {self.name} runs {', '.join(self.families)}, and {spec.name} is of family {spec.family}; use another model"
        if spec is not None and spec.encoder and not self.encoders:
            return f"--backend {self.name} generates, and {spec.name} is an encoder; use --backend native or hf"
        if device is not None and device not in self.devices:
            return f"--backend {self.name} runs on {' or '.join(self.devices)}, not on {device}; use --device {self.devices[0]}"
        return None

    def open(self, opening: Opening) -> Backend:
        """Loads the model; raises whatever the stack raises, and UserError for what it refuses only then."""
        module, _, function = self.opener.partition(":")
        load: Any = getattr(import_module(module), function)
        backend: Backend = load(opening)
        return backend

    def _without(self, name: str) -> str:
        flag = f"--{name.replace('_', '-')}"
        if name in ("deterministic", "admission"):
            return f"{flag} is the native engine's and means nothing to --backend {self.name}; leave one of them out"
        return f"{flag} is not run by --backend {self.name}; leave one of them out"
