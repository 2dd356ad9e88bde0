"""Which run of which code on which machine."""

from __future__ import annotations

from inferometer.bench.records.session import Session, bare_environment, revision
from inferometer.hardware.detect import detect


def test_a_session_is_of_its_own_and_a_machine_and_code_are_not() -> None:
    machine = detect()
    one, other = Session.begin(machine), Session.begin(machine)
    assert one.session != other.session
    assert (one.machine, one.revision) == (other.machine, other.revision) == (machine.fingerprint, revision())
    assert set(one.facts) == {"session", "machine", "revision"}


def test_the_software_is_known_without_loading_it() -> None:
    assert bare_environment()["torch"] is not None
