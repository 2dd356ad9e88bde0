"""Admission: which requests enter at which sweep, and what of them runs in it."""

from __future__ import annotations

from numbers import Integral
from typing import Protocol

from inferometer.errors import UserError, shown
from inferometer.schedule.batch import Batch
from inferometer.schedule.continuous import Continuous
from inferometer.schedule.groups import GROUP_SIZE, Diagonal, Row, Zigzag

ADMISSIONS = ("continuous", "zigzag", "diagonal", "row")


class Admission(Protocol):
    """An order in which requests run. It keeps nothing between sweeps, so that one can serve several schedulers.

    Whatever it decides, the tokens are the same.
    """

    @property
    def name(self) -> str:
        """As the command line calls it."""

    def plan(self, batch: Batch) -> None:
        """Puts the coming sweep together: who enters, who decodes, how many tokens of which prompt run.

        When anyone waits or runs and no token is unread, something must run.
        """


def admission(name: str, group_size: int | None = None, num_groups: int | None = None) -> Admission:
    """The admission called `name`. group_size: requests a group. num_groups: most groups in flight, None for as many as fit.

    Raises UserError for settings that mean nothing.
    """
    if name not in ADMISSIONS:
        raise UserError(f"--admission must be one of {', '.join(ADMISSIONS)}, not {shown(name)}")
    if name == "continuous":
        for option, value in (("--group-size", group_size), ("--num-groups", num_groups)):
            if value is not None:
                raise UserError(f"{option} means nothing to --admission continuous; leave it out, or use --admission zigzag or diagonal")
        return Continuous()
    size = GROUP_SIZE if group_size is None else _whole("--group-size", group_size)
    groups = None if num_groups is None else _whole("--num-groups", num_groups)
    if name == "zigzag":
        return Zigzag(size, groups)
    if name == "diagonal":
        return Diagonal(size, groups)
    if groups not in (None, 1):
        raise UserError(f"--admission row runs one group at a time: --num-groups must be 1 or left out, not {groups}")
    return Row(size)


def _whole(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise UserError(f"{option} must be a whole number of at least 1, not {shown(value)}")
    return int(value)
