"""Fetching ahead of need."""

from __future__ import annotations

from typing import Any

from inferometer.kernels.support import kernel, tl


@kernel()
def prefetch(addresses: Any) -> Any:
    """Brings the cache lines of these addresses into the L2 cache, and waits for nothing."""
    tl.inline_asm_elementwise(
        "{prefetch.global.L2 [$1]; mov.u32 $0, 0;}", "=r,l", [addresses.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
