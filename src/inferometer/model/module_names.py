"""Modules as a checkpoint's config.json lists them: by name, with wildcards, or by regular expressions that must not take for ever."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, Final

from inferometer.errors import ModelError, shown

_EXPRESSION: Final = "re:"
"""What a regular expression in compressed-tensors' list begins with."""
_LONGEST: Final = 60
"""Characters of a module's name, for what matching may take."""
_LEAST_STEPS: Final = 1_000
"""Of one entry, for a name: what compiling and calling it take."""
_MOST_STEPS: Final = 2_000_000
"""Of a whole list, for a name: a model has some thousand of them, and Python takes 10^8 steps a second."""
# Escapes, classes and comments are passed over; what makes the engine try again is named.
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\(\?#(?:\\.|[^)\\])*\)|(?P<verbose>\(\?[a-zA-Z-]*x)|(?P<open>\(\??)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<perhaps>\?)[?+]?|(?P<repeat>[*+]|\{\d+(?:,\d*)?\}|\{,\d+\})[?+]?|.",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Modules by the whole name, its end, or that of what they lie in; patterns: of those with a * for anything, or an expression."""

    plain: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.plain or self.patterns)

    def hold(self, module: str) -> bool:
        """Whether the module is one of these, or lies in one."""
        words = module.split(".")
        runs = (".".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1))
        return not self.plain.isdisjoint(runs) or any(pattern.match(module) for pattern in self.patterns)


def read_module_names(value: Any, name: str, option: str) -> ModuleNames:
    """The modules of a list of quantization_config, none for None. option: how the list is called in messages.

    Raises ModelError, one line, for what is no list of names, and for patterns that could take minutes to match.
    """
    where = f"{name}: quantization_config: {option}"
    if value is None:
        return ModuleNames()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ModelError(f"{where} must be a list of modules' names, not {shown(value)}")
    others = [each for each in dict.fromkeys(value) if each.startswith(_EXPRESSION) or "*" in each]
    patterns = tuple(_expression(each, where) if each.startswith(_EXPRESSION) else _wildcards(each) for each in others)
    # Only of what compiled: its brackets have partners.
    steps = {each: _steps(each.removeprefix(_EXPRESSION)) if each.startswith(_EXPRESSION) else _LEAST_STEPS for each in others}
    if sum(steps.values()) > _MOST_STEPS:
        raise ModelError(
            f"{where} could take minutes to match, {shown(max(others, key=steps.__getitem__))} the longest of its {len(others)} patterns; "
            "list modules by name"
        )
    return ModuleNames(frozenset(value).difference(others), patterns)


def _wildcards(given: str) -> re.Pattern[str]:
    """What lies between two * is looked for once, at its first place, as any later one leaves less for the rest."""
    first, *middle, last = map(re.escape, given.split("*"))
    return re.compile(rf"(?:.*\.)?{first}{''.join(f'(?>.*?{part})' for part in middle)}.*{last}(?:\..*)?\Z")


def _expression(given: str, where: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets within sets, which other versions of Python may read differently
            return re.compile(given.removeprefix(_EXPRESSION))
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"{where} has {shown(given)}, which is no regular expression: {error}") from None


def _steps(expression: str) -> float:
    """The most that matching it to a name takes, about: the ways to share a name out among what repeats, times those through what there
    are several of. Without end where a group repeats, as its ways may grow with each character, or where blanks hide what it says."""
    repeats, ways, bars, closed = 0, 1.0, [0], False
    for token in _TOKEN.finditer(expression.removesuffix(".*")):  # what ends it so is tried once
        kind = token.lastgroup
        if kind == "verbose" or (kind == "repeat" and closed):
            return math.inf
        closed = kind == "close"
        repeats += kind == "repeat"
        ways *= 2 if kind == "perhaps" else 1 + bars.pop() if closed else 1
        if kind == "open":
            bars.append(0)
        elif kind == "bar":
            bars[-1] += 1
    return _LEAST_STEPS + math.comb(_LONGEST, min(repeats, _LONGEST // 2)) * ways * (1 + bars[0])
