"""How many rows of logits there are at a time where each token of a text is scored."""

from __future__ import annotations


def scored_rows(vocabulary: int) -> int:
    """Rows of logits that a GPU makes at a time where each token of a text is scored: as many as it computes while the host launches the
    next, 256 to 1024, and no more than 2^26 logits where 256 rows are fewer."""
    return max(256, min(1024, (1 << 26) // vocabulary // 256 * 256))
