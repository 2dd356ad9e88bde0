"""How many pages there are, and on which side of the link."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from inferometer.errors import UserError

UNASKED_BYTES = 32 << 30
"""Most host memory for pages unless --host-memory says how much: to page-lock it takes about 0.4 s a GiB."""


@dataclass(frozen=True, slots=True)
class PageRoom:
    """pages: on both sides. device: those of them on the device. slot_pages: those of one layer that come from the host together, None for
    as many as the engine finds best."""

    pages: int
    device: int
    slot_pages: int | None = None

    @property
    def elsewhere(self) -> int:
        """Pages on the host."""
        return self.pages - self.device


def share_pages(share: float, device: int, host: int, wanted: int | None = None) -> PageRoom:
    """Pages of which `share`, rounded up, lie on the host.

    device, host: for how many each side has room. wanted: no more than so many; None for all.
    Raises UserError, which names the flag, where there is room for none.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share is from 0 to 1, not {share}")
    limits = [int(side / part + 1e-9) for side, part in ((device, 1 - share), (host, share)) if part]
    pages = min(limits if wanted is None else [*limits, wanted])
    while pages > 0 and (ceil(share * pages - 1e-9) > host or pages - ceil(share * pages - 1e-9) > device):
        pages -= 1
    if pages < 1:
        short = "--host-memory has no room for a page of KV cache" if host < 1 else "no memory is left on the device for the KV cache"
        raise UserError(f"{short}; raise {'--host-memory' if host < 1 else '--gpu-memory, or use --offload pages'}")
    return PageRoom(pages, pages - ceil(share * pages - 1e-9))
