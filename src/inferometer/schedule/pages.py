"""The pages of the KV cache: who holds them, which are free, and which are found by their content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush


class PagesExhaustedError(RuntimeError):
    """More pages were asked for than are available; schedulers look before they take."""


class PagePool:
    """Page numbers 0 to pages - 1 with reference counts; it holds no memory itself.

    A page is free, or in use by one or more sequences, or kept: nobody uses it, but it is published under a digest and found by it until
    its room is needed. Free pages go out lowest number first, then the kept ones that have not been used for longest.

    Pages that were never taken cost nothing: a small model has room for millions.

    pages, page_size (tokens a page): at least 1. Raises ValueError.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of at least one token, not {pages} of {page_size}")
        self.pages = pages
        self.page_size = page_size
        self.peak_in_use = 0
        self._free: list[int] = []  # a heap: those that were given back
        self._users: list[int] = []  # as long as there are pages that were ever taken: the lowest numbers
        self._kept: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Pages that can be taken now."""
        return self.pages - self.in_use

    @property
    def in_use(self) -> int:
        """Pages that someone holds; one that several hold counts once."""
        return len(self._users) - len(self._free) - len(self._kept)

    @property
    def kept(self) -> int:
        """Pages that nobody holds and that are still found by their content."""
        return len(self._kept)

    def reset_peak(self) -> None:
        """Starts `peak_in_use` anew, from what is in use now."""
        self.peak_in_use = self.in_use

    def pages_of(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """`count` pages with one user each. Raises PagesExhaustedError, and takes none, if fewer are available."""
        in_use = self.in_use + count
        if in_use > self.pages:
            raise PagesExhaustedError(f"{count} pages are asked for, {self.available} of {self.pages} are available")
        free, users = self._free, self._users
        taken = [heappop(free) for _ in range(min(count, len(free)))]
        for page in taken:
            users[page] = 1
        fresh = min(count - len(taken), self.pages - len(users))
        if fresh:
            taken += range(len(users), len(users) + fresh)
            users += (1,) * fresh
        while len(taken) < count:
            page = self._evict()
            users[page] = 1
            taken.append(page)
        if in_use > self.peak_in_use:
            self.peak_in_use = in_use
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more user for pages that someone holds or that are kept. Raises RuntimeError for a free page."""
        for page in pages:
            if not self._held(page):
                if page not in self._kept:
                    raise RuntimeError(f"page {page} is free and holds nothing to share")
                del self._kept[page]
            self._users[page] += 1
        self.peak_in_use = max(self.peak_in_use, self.in_use)

    def release(self, pages: Sequence[int]) -> None:
        """One user fewer for a sequence's pages, given from first to last. Raises RuntimeError for one that nobody holds.

        The last page counts as the longest unused: a page is of no use once the one before it is gone.
        """
        for page in reversed(pages):
            if not self._held(page):
                raise RuntimeError(f"page {page} is released, but nobody holds it")
            self._users[page] -= 1
            if self._users[page] == 0:
                if page in self._digest_of:
                    self._kept[page] = None
                else:
                    heappush(self._free, page)

    def publish(self, page: int, digest: bytes) -> bool:
        """Lets a page in use be found by `digest`. False, and nothing changes, if another page already is."""
        if not self._held(page):
            raise RuntimeError(f"page {page} is published, but nobody holds it")
        found = self._page_of.setdefault(digest, page)
        if found == page:
            self._digest_of[page] = digest
        return found == page

    def find(self, digest: bytes) -> int | None:
        """The page published under `digest`, in use or kept."""
        return self._page_of.get(digest)

    def unused(self, pages: Iterable[int]) -> int:
        """How many of the pages nobody holds: so many fewer are available once they are shared."""
        return sum(not self._held(page) for page in pages)

    def forget(self) -> None:
        """No page is found by its content any longer: kept ones are free, those in use stay so."""
        for page in self._kept:
            heappush(self._free, page)
        self._kept.clear()
        self._page_of.clear()
        self._digest_of.clear()

    def users(self) -> dict[int, int]:
        """How many hold each page in use."""
        return {page: users for page, users in enumerate(self._users) if users}

    def check(self) -> None:
        """Raises RuntimeError, saying what is wrong, if a page is lost, in two states at once or found by a wrong digest."""
        if len(self._users) > self.pages:
            raise RuntimeError(f"{len(self._users)} pages were taken of {self.pages}")
        for page, users in enumerate(self._users):
            if users < 0:
                raise RuntimeError(f"page {page} has {users} users")
        states = sorted([*self._free, *self._kept, *self.users()])
        if states != list(range(len(self._users))):
            wrong = sorted(set(range(len(self._users))) ^ set(states)) or sorted({page for page in states if states.count(page) > 1})
            raise RuntimeError(f"pages {wrong} are lost, or free and in use at once")
        for page in self._kept:
            if page not in self._digest_of:
                raise RuntimeError(f"page {page} is kept, but found by no digest")
        for page in self._free:
            if page in self._digest_of:
                raise RuntimeError(f"page {page} is free, but still found by a digest")
        if {digest: page for page, digest in self._digest_of.items()} != self._page_of:
            raise RuntimeError("pages and digests do not lead to each other")

    def _held(self, page: int) -> bool:
        return page < len(self._users) and self._users[page] > 0

    def _evict(self) -> int:
        page, _ = self._kept.popitem(last=False)
        del self._page_of[self._digest_of.pop(page)]
        return page
