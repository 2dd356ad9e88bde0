"""The regimes: kinds of measurement that are judged apart, each with its gate and its frozen split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from inferometer.estimate.measured.row import MeasuredRow, Quantity

Key = Literal["model", "device", "row"]
KEYS: tuple[Key, ...] = get_args(Key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Rows that are predicted by constants which never saw them. name: what they have in common, such as "model opt-1.3b"."""

    key: Key
    name: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which rows constants may be set on: `fitted` ids, or with `leave_out` all but a fold, each fold once, for each key; or none.

    `alike` maps a model to the one that it has its shape from: a fold that holds one holds both. Raises ValueError for both kinds.
    """

    fitted: frozenset[str] = frozenset()
    leave_out: tuple[Key, ...] = ()
    alike: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.fitted and self.leave_out:
            raise ValueError("a split names fitted rows or what it leaves out, not both")
        if self.alike and "model" not in self.leave_out:
            raise ValueError("alike is for a split that leaves models out")

    def folds(self, rows: Iterable[MeasuredRow]) -> tuple[Fold, ...]:
        """The folds over `rows`, in order; none where rows are named or nothing is fitted. Rows that are not counted are in none."""
        counted = [row for row in rows if row.counted]
        folds = []
        for key in self.leave_out:
            groups: dict[str, list[str]] = {}
            for row in counted:
                groups.setdefault(self._of(row, key), []).append(row.id)
            folds += [Fold(key=key, name=f"{key} {name}", ids=tuple(ids)) for name, ids in groups.items()]
        return tuple(folds)

    def _of(self, row: MeasuredRow, key: Key) -> str:
        if key == "model":
            return self.alike.get(row.model, row.model)
        return row.device if key == "device" else row.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A kind of measurement, and what an estimator should reach on its rows that were not fitted.

    gate, stretch: mean absolute error relative to the measured value; worst_gate: the largest. None where the regime only informs.
    published: the best error that somebody published for it, in words. gates: False where even a missed gate is only information
    (this product's own runs, which change with the engine). constants: another regime, of the same runs, whose folds' constants
    predict these rows; None for its own. read_off: constants were read off some of its rows, which are not strictly unseen then.
    """

    name: str
    title: str
    quantity: Quantity
    published: str | None
    gate: float | None
    worst_gate: float | None
    stretch: float | None
    gates: bool
    constants: str | None
    split: Split
    read_off: bool = False
