"""Claims about the published tables: every sum is worked out, and a wrong one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.report.study.document_notes import Sum, claims, notes_on, page, sources, worked_out


def test_there_are_claims_about_each_document_and_every_sum_holds() -> None:
    found = claims()
    assert {claim.document for claim in found} == {"000", "001", "002", "003", "004"}
    assert sum(len(claim.sums) for claim in found) > 40
    for claim in found:
        assert all(
            abs(worked_out(each.expression) - float(each.value)) <= 10.0 ** -len(each.value.partition(".")[2]) for each in claim.sums
        )


def test_every_document_is_named_where_its_claims_are() -> None:
    assert set(sources()) == {claim.document for claim in claims()}
    assert "## Document 003: Sizes\n\nThe document: the README of EET" in page({"003": "Sizes"})


def test_a_sum_that_does_not_come_out_is_refused() -> None:
    assert Sum("693.77 * 1000 / 16384", "42.34", "us").text == "693.77 x 1000 / 16384 = 42.34 us"
    with pytest.raises(ValueError, match="is 42"):
        Sum("693.77 * 1000 / 16384", "42.35", "us")


@pytest.mark.parametrize("text", ["__import__('os')", "2 if 1 else 3", "a + 1", "'a' * 3", "[1]", "True + 1", "1 // 2"])
def test_only_sums_of_numbers_are_worked_out(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number, nor a sum of numbers"):
        worked_out(text)


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(0, 9))
def test_sums_are_those_of_arithmetic(a: int, b: int, c: int) -> None:
    assert worked_out(f"({a} - {b}) * 2**{c} / {b} + {c}") == (a - b) * 2**c / b + c


def test_documents_without_claims_have_no_notes() -> None:
    assert notes_on("999") == ()
    assert any(line.startswith("Throughput is upside down. ") and "= 42.34 us a token" in line for line in notes_on("001"))
