"""What every test of the command line finds done."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The kernels for this CPU are there: that they are compiled is a line on the standard error, of whichever test comes first."""
    from inferometer.kernels.cpu_library import cpu_library

    cpu_library()
