"""The record of a question whose process gave none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from inferometer.bench.backends.registry import entry
from inferometer.bench.plan.question import Question
from inferometer.bench.records.record import Record, Status
from inferometer.errors import UserError


def unrun(question: Question, status: Status, evidence: str, environment: Mapping[str, Any]) -> Record:
    """A record without figures. Raises ValueError for the status "ok"."""
    version = None
    with suppress(UserError):  # a backend that is not known here has no version either
        version = entry(question.case.backend).version()
    return Record(
        **question.case.asked,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        stack_version=version or "unknown",
        gpus=question.case.tensor_parallel if question.place.kind == "cuda" else 0,
        runs=question.request.runs,
        warmups=question.request.warmups,
        status=status,
        evidence=evidence,
        environment=environment,
    )
