"""What a step yields: columns that read as a list."""

from __future__ import annotations

import pytest

from inferometer.schedule.emission import Emission, Emissions

TWO = [Emission(7, 1, -0.5, ((1, -0.5), (3, -2.0)), (None, -1.0), None), Emission(9, 2, -0.25, (), None, "length")]


def columns() -> Emissions:
    return Emissions(*map(list, zip(*TWO, strict=True)))


def test_it_reads_as_the_list_of_its_emissions() -> None:
    emissions = columns()
    assert emissions == TWO
    assert (list(TWO) == emissions) is True
    assert emissions == columns()
    assert emissions != TWO[:1]
    assert emissions != 3
    assert len(emissions) == 2
    assert list(emissions) == list(emissions) == TWO
    assert [emissions[0], emissions[-1]] == TWO
    assert emissions[1:] == TWO[1:]
    assert list(reversed(emissions)) == TWO[::-1]
    assert TWO[0] in emissions
    assert emissions.index(TWO[1]) == 1
    assert repr(emissions) == repr(TWO)
    with pytest.raises(IndexError):
        emissions[2]
    with pytest.raises(TypeError):
        hash(emissions)
    more = list(TWO)
    more += emissions
    assert more == TWO + TWO


def test_none_is_empty() -> None:
    assert not Emissions()
    assert Emissions() == []
    assert list(Emissions()) == []


def test_an_emission_has_its_fields_by_name() -> None:
    emission = columns()[1]
    assert (emission.request_id, emission.token_id, emission.logprob, emission.top) == (9, 2, -0.25, ())
    assert (emission.prompt_logprobs, emission.finish_reason) == (None, "length")
    assert Emission(1, 2, -0.5) == Emission(1, 2, -0.5, (), None, None)
