"""`python -m inferometer`."""

from __future__ import annotations

import sys

from inferometer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
