"""Blocks of query tokens of a ragged batch, numbered so that the host need not know where its rows begin."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import constexpr, kernel, tl


@kernel()
def block_of(starts: Any, number: Any, rows: Any, tokens: Any, queries: constexpr) -> Any:
    """(row, first token, end of the row) of a block of `queries` tokens; no token is in it where the second is not below the third.

    Row r's blocks are numbered from starts[r] // queries + r: room enough for its last, partly filled block. The tokens behind the
    last row are row `rows`.
    """
    row = -1
    for first in range(0, rows + 1, 128):
        candidate = first + tl.arange(0, 128)
        opening = tl.load(starts + candidate, mask=candidate <= rows, other=0) // queries + candidate
        row += tl.sum(((candidate <= rows) & (opening <= number)).to(tl.int32), 0)
    start = tl.load(starts + row)
    stop = tl.load(starts + row + 1, mask=row < rows, other=0)
    stop = tl.where(row < rows, stop, tokens)
    return row, start + (number - (start // queries + row)) * queries, stop
