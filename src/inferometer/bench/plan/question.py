"""A cell of a study as a question to a backend: the case that names it, the request that opens it, and why it cannot be asked here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

from inferometer.bench.backends.registry import entry
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.machine.place import Place
from inferometer.bench.records.case import Case
from inferometer.bench.study.settings import TIMEOUT
from inferometer.bench.study.study import Cell, Settings, Study
from inferometer.errors import UserError
from inferometer.estimate.request import resolve_dtype
from inferometer.model.description import ModelDescription, describe
from inferometer.model.formats import COMPUTE_DTYPES, DTYPE_ALIASES
from inferometer.model.quantisation import stored_format
from inferometer.model.spec import ModelSpec

_REQUEST: Final = frozenset(field.name for field in fields(BenchRequest))
_CASE: Final[Mapping[str, Any]] = {field.name: field.default for field in fields(Case)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`spec` is None for a model that cannot be described here. `refusal` is why nothing is run, None if it can be tried.

    memory_limit is in `case`; the process that runs it keeps it, so that `request` only has it for a backend that keeps one itself.
    """

    cell: Cell
    case: Case
    request: BenchRequest
    spec: ModelSpec | None
    place: Place
    timeout_s: float | None
    refusal: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        """What is measured once: the case in its column."""
        return (self.cell.part, self.cell.column, self.case.case_id)

    @property
    def process(self) -> tuple[object, ...]:
        """Equal for questions that one process can answer: a column's backend, number formats and shards."""
        case = self.case
        return (self.cell.column, case.backend, case.dtype, case.quantize, case.kv_dtype, case.tensor_parallel, self.place.torch_name)

    @property
    def row(self) -> tuple[str, int]:
        """Equal for questions that stand side by side."""
        return (self.cell.part, self.cell.row)


def questions(study: Study, place_of: Callable[[str], Place]) -> list[Question]:
    """Every cell of a study. `place_of` finds the place of a --device value.

    Raises UserError for a cell that makes no case: one without lengths, or whose settings contradict each other.
    """
    return [question(cell, place_of(cell.settings.get("device", "auto"))) for cell in study.cells()]


def question(cell: Cell, place: Place) -> Question:
    """One cell. Raises what `questions` does."""
    settings = dict(cell.settings)
    timeout = settings.pop(TIMEOUT, None)
    described, reason = _described(settings.get("model")) if _in_process(settings) else (None, None)
    spec = None if described is None else described.spec
    if spec is not None and spec.encoder:
        settings["forward_only"] = True
    if described is not None and settings.get("quantize") is None and (form := stored_format(described.config, described.name)):
        settings["quantize"] = form
    dtype, unmultiplied = _dtype(str(settings.get("dtype", "auto")), place, described)
    request = _request(cell, {**settings, "dtype": dtype, "device": place.torch_name})
    case = _case(cell, request, settings, spec, place)
    if cell.excluded is not None:
        reason = f"left out of the study: {cell.excluded}"
    reason = reason or _refusal(request, case, spec, place) or unmultiplied
    return Question(cell=cell, case=case, request=request, spec=spec, place=place, timeout_s=timeout, refusal=reason)


def _request(cell: Cell, settings: Settings) -> BenchRequest:
    if "batch_size" not in settings:
        raise UserError(f"part {cell.part}: batch_size is missing; give it, or group_size and num_groups")
    backend = str(settings.get("backend", "native"))
    given = {name: value for name, value in settings.items() if name in _REQUEST}
    if settings.get("forward_only"):
        given.pop("decode_length", None)  # what a study fixes for all its cases is of those that generate
    if "gpu_memory" in given and not _keeps_limits(backend):
        del given["gpu_memory"]
    if "percent" in given:
        given["percent"] = tuple(int(word) for word in given["percent"].replace(",", " ").split())
    return BenchRequest(**{"model": None, **given}, backends=(backend,), batch_sizes=(settings["batch_size"],))


def _case(cell: Cell, request: BenchRequest, settings: Settings, spec: ModelSpec | None, place: Place) -> Case:
    """The case, with what a request does not know of (yet) as the study has it."""
    beyond = {name: value for name, value in settings.items() if name in _CASE and name not in _REQUEST and name not in _RESOLVED}
    limit = settings.get("gpu_memory")
    if limit is not None:
        beyond["memory_limit"] = int(limit * 2**30)
    try:
        with suppress(UserError):  # an order that means nothing is told when the request is checked
            if spec is not None:
                ((case,),) = request.rounds(spec, dtype=request.dtype, device=place.slug, device_name=place.name)
                return replace(case, **beyond)
        asked = {name: value for name, value in settings.items() if name in _CASE and name not in _RESOLVED}
        asked["disk"] = request.disk is not None
        asked["percent"] = None if request.percent is None else " ".join(map(str, request.percent))
        if request.host_memory is not None:
            asked["host_memory_limit"] = int(request.host_memory * 2**30)
        return Case(
            **{**asked, **beyond},
            model=str(request.model) if spec is None else spec.name,
            backend=request.backends[0],
            dtype=request.dtype,
            device=place.slug,
            device_name=place.name,
            batch_size=request.batch_sizes[0],
            sequence_length=request.sequence_length,
            decode_length=None if request.forward_only else request.new_tokens,
        )
    except ValueError as error:
        raise UserError(f"part {cell.part}, column {cell.column}: {error}") from None


# Settings of a case that are worked out from several, or from the machine.
_RESOLVED: Final = frozenset({"model", "backend", "dtype", "device", "batch_size", "sequence_length", "decode_length"})


def _refusal(request: BenchRequest, case: Case, spec: ModelSpec | None, place: Place) -> str | None:
    """Why a case is not run here: the one place that asks. It is what the request, the backend and the machine say of themselves."""
    name = request.backends[0]
    try:
        absent = entry(name).missing(request, spec)
    except UserError as error:
        return str(error)
    if absent is not None:
        return absent
    for setting, value in _beyond(case):
        return f"--{setting.replace('_', '-')} {value} is not run by --backend {name} yet"
    lacking = place.lacks(case.tensor_parallel)
    if lacking is not None:
        return lacking
    try:
        request.check()
        if spec is not None:
            request.check_model(spec)
            request.check_backends(spec=spec, device=place.kind)
    except UserError as error:
        return str(error)
    return None


def _beyond(case: Case) -> Iterator[tuple[str, Any]]:
    """What the case asks for and a request has no option for."""
    for name, default in _CASE.items():
        if name not in _REQUEST and name not in _RESOLVED and name not in ("device_name", "memory_limit", "host_memory_limit"):
            value = getattr(case, name)
            if value != default:
                yield name, value


def _in_process(settings: Settings) -> bool:
    """Whether the model is ours to describe, and not a server's."""
    try:
        return entry(str(settings.get("backend", "native"))).in_process
    except UserError:
        return True


def _keeps_limits(backend: str) -> bool:
    try:
        return entry(backend).memory_limit
    except UserError:
        return False


def _dtype(name: str, place: Place, described: ModelDescription | None) -> tuple[str, str | None]:
    """The number format as a case has it, and why the place does not run it."""
    known = DTYPE_ALIASES.get(name, name)
    if known == "auto" and place.spec is not None:
        known = resolve_dtype(known, place.spec, {} if described is None else described.config)
    elif known == "auto":
        known = "float16"
    if known in COMPUTE_DTYPES and known not in place.multiplies:
        return known, f"--dtype {known}: {place.name} does not multiply {known}; use --dtype {' or '.join(place.multiplies)}"
    return known, None


@cache
def _described(model: str | None) -> tuple[ModelDescription | None, str | None]:
    try:
        return describe(model, config_only=True), None
    except UserError as error:
        return None, str(error)
