"""What is wrong in the published tables, each claim with the sums that show it."""

from __future__ import annotations

import ast
import operator
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from inferometer.hardware.table import Table
from inferometer.report.markup.parts import Bullets, Format, Heading, Paragraph, Part, written

_FILE = "document_notes.toml"
_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow}
)


@dataclass(frozen=True, slots=True)
class Sum:
    """An expression of numbers, its value as written, and what that is.

    Raises ValueError where the expression does not round to the value.
    """

    expression: str
    value: str
    what: str

    def __post_init__(self) -> None:
        decimals = len(self.value.partition(".")[2])
        found = worked_out(self.expression)
        # Half a unit of the last digit, and a little for a half that is not exact in binary.
        if abs(found - float(self.value)) > 0.5000001 * 10.0**-decimals:
            raise ValueError(f"{self.expression} is {found}, not {self.value}")

    @property
    def text(self) -> str:
        """The sum as a line."""
        plain = self.expression.replace("2**30", "2^30").replace(" * ", " x ")
        return f"{plain} = {self.value} {self.what}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that is wrong in a document's tables, or missing from them."""

    document: str
    title: str
    text: str
    sums: tuple[Sum, ...]

    @property
    def line(self) -> str:
        """The claim as one line."""
        shown = "; ".join(each.text for each in self.sums)
        return f"{self.title}. {self.text}" + (f" ({shown}.)" if shown else "")


def notes_on(document: str) -> tuple[str, ...]:
    """The claims about a document, a line each; none for a document that there are none about."""
    return tuple(claim.line for claim in claims() if claim.document == document)


def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the file. Raises UserError, naming the claim and its key, for a file that is damaged."""
    return _read()[0]


def sources() -> Mapping[str, str]:
    """What each document is, by its number. Raises UserError as `claims` does."""
    return _read()[1]


@cache
def _read() -> tuple[tuple[Claim, ...], Mapping[str, str]]:
    table = Table(tomllib.loads(files("inferometer.report.study").joinpath(_FILE).read_text("utf-8")), _FILE)
    found = tuple(_claim(each) for each in table.tables("claim"))
    documents = table.table("sources")
    named = MappingProxyType({document: documents.text(document) for document in documents.names()})
    documents.finish()
    table.finish()
    return found, named


def _claim(table: Table) -> Claim:
    sums = []
    for each in table.tables("sums"):
        try:
            sums.append(Sum(each.text("sum"), each.text("is"), each.text("of")))
        except (ValueError, SyntaxError) as error:
            raise each.error(str(error)) from None
        each.finish()
    made = Claim(table.text("document"), table.text("title"), table.text("text"), tuple(sums))
    table.finish()
    return made


def page(titles: Mapping[str, str], form: Format = "md") -> str:
    """All claims as a page, with what each document is; `titles` are those of the studies after them, by number."""
    parts: list[Part] = [
        Heading(1, "What is wrong in the published tables"),
        Paragraph(
            "Inferometer's studies reproduce the tables of five documents. This is what does not hold in them, with the sums, so that "
            "anybody can check it. Figures are the documents' own unless a sum says otherwise; sizes follow from the models' shapes."
        ),
    ]
    for document, title in titles.items():
        mine = [claim for claim in claims() if claim.document == document]
        parts += [Heading(2, f"Document {document}: {title}"), Paragraph(f"The document: {sources()[document]}.")]
        for claim in mine:
            parts += [Heading(3, claim.title), Paragraph(claim.text)]
            parts += [Bullets(tuple(each.text for each in claim.sums))] if claim.sums else []
    return written(parts, form)


def worked_out(expression: str) -> float:
    """The value of numbers with + - * / ** and brackets. Raises ValueError for anything else in it."""
    return _value(ast.parse(expression, mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"{ast.unparse(node)} is not a number, nor a sum of numbers")
