"""What a run of a study would do: its questions with what is expected of each, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inferometer.bench.machine.place import Place
from inferometer.bench.plan.forecast import Forecast, forecast
from inferometer.bench.plan.question import Question, questions
from inferometer.bench.study.settings import did_you_mean
from inferometer.bench.study.study import Study
from inferometer.errors import UserError


@dataclass(frozen=True, slots=True)
class Planned:
    """A question and its forecast."""

    question: Question
    forecast: Forecast

    @property
    def expected(self) -> Literal["ok", "oom", "skipped"]:
        """How it is expected to end."""
        return "skipped" if self.question.refusal is not None else self.forecast.expected

    @property
    def reason(self) -> str | None:
        """Why it is expected to end other than well."""
        if self.question.refusal is not None or self.expected == "ok":
            return self.question.refusal
        return self.forecast.impossible or self.forecast.too_much

    @property
    def limit_s(self) -> float:
        """After how many seconds it counts as hung."""
        return round(self.forecast.time_limit_s) if self.question.timeout_s is None else self.question.timeout_s

    @property
    def label(self) -> str:
        """Where it stands in the study, in words."""
        point = ", ".join(f"{name} {value}" for name, value in self.question.cell.point.items())
        return f"{self.question.cell.part}: {point + ', ' if point else ''}{self.question.cell.column}"


def plan(study: Study, place_of: Callable[[str], Place], only: Sequence[str] = ()) -> list[Planned]:
    """The questions of a study that `only` names, all without any. Raises what `questions` and `select` do."""
    asked = questions(study, place_of)
    return [Planned(question, forecast(question)) for question in select(asked, only)]


def select(asked: Sequence[Question], only: Iterable[str]) -> list[Question]:
    """The questions that every name in `only` admits.

    NAME is a part or a column; part=NAME, column=NAME and SETTING=VALUE[,VALUE...] say which. Several of one kind admit each of theirs.
    Raises UserError for a name or a value that no question has.
    """
    wanted: dict[str, set[str]] = {}
    for word in only:
        name, equals, values = word.partition("=")
        if not equals:
            name, values = _kind(word, asked), word
        known = {str(value) for question in asked if (value := _values(question).get(name)) is not None}
        if not known:
            names = sorted({name for question in asked for name in _values(question)})
            raise UserError(f"--only {word}: no case has a {name}{did_you_mean(name, names)}")
        for value in [values] if values in known else values.split(","):
            if value not in known:
                raise UserError(f"--only {word}: no case has {name} {value}{did_you_mean(value, sorted(known))}")
            wanted.setdefault(name, set()).add(value)
    return [each for each in asked if all(str(_values(each).get(name)) in values for name, values in wanted.items())]


def _kind(word: str, asked: Sequence[Question]) -> str:
    for name in ("part", "column"):
        if any(_values(question)[name] == word for question in asked):
            return name
    names = list(dict.fromkeys(str(_values(question)[name]) for name in ("part", "column") for question in asked))
    raise UserError(f"--only {word} is no part and no column{did_you_mean(word, names)}")


def _values(question: Question) -> Mapping[str, object]:
    cell = question.cell
    return {**cell.settings, "part": cell.part, "column": cell.column}
