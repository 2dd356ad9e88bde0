"""What benchmarks/collectives.py measures, part by part. A part yields its rows; those of rank 0 count."""

from __future__ import annotations

from collective_library import nccl_part, order_part, torch_part
from collective_rows import collective_part, overlap_part, rows_part, ways_part
from collective_words import mailbox_part

PARTS = {
    "ways": ways_part,
    "mailbox": mailbox_part,
    "rows": rows_part,
    "overlap": overlap_part,
    "collective": collective_part,
    "torch": torch_part,
    "nccl": nccl_part,
    "order": order_part,
}
