"""Writes into the pages of docs/ what the commands that they show print.

python benchmarks/doc_output.py            writes the pages
python benchmarks/doc_output.py --check    exits 1 and names the pages that are stale

Behind `<!-- run -->`, or `<!-- run: 12 -->` for the first 12 lines alone, a block holds `$ inferometer ...` and its output. Such commands
need neither torch nor a certain machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

from inferometer.cli.main import main as inferometer

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?m)^(<!-- run(?:: (?P<lines>\d+))? -->\n```\n\$ inferometer (?P<words>(?:.*\\\n)*.*)\n)(?:.*\n)*?```\n")


def printed(words: str) -> str:
    """What the command prints, run at the repository's root, without blanks at the ends of lines; raises ValueError if it fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = inferometer(shlex.split(words.replace("\\\n", " "), comments=True))
    if code:
        raise ValueError(f"inferometer {words} ended with {code}")
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def fresh(text: str) -> str:
    """The page with the output of each of its blocks as it is now."""

    def block(found: re.Match[str]) -> str:
        lines = printed(found["words"]).split("\n")
        most = len(lines) if found["lines"] is None else int(found["lines"])
        return found[1] + "\n".join(lines[:most] + ["..."] * (most < len(lines))) + "\n```\n"

    return BLOCK.sub(block, text)


def main(check: bool) -> int:
    """Writes what is stale, or with `check` names it; the number of the exit."""
    os.chdir(ROOT)
    stale = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text("utf-8")
        if (wanted := fresh(text)) != text:
            stale[page] = wanted
    for page, text in stale.items():
        if check:
            print(f"{page.relative_to(ROOT)} is stale: run python benchmarks/doc_output.py", file=sys.stderr)
        else:
            page.write_text(text, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
