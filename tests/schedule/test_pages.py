"""The pool of pages: counts, order, content that is found again, and a check that finds damage."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.schedule.pages import PagePool, PagesExhaustedError


def names(count: int) -> list[bytes]:
    return [bytes([i]) for i in range(count)]


def publish(pool: PagePool, pages: list[int], digests: list[bytes]) -> None:
    for page, digest in zip(pages, digests, strict=True):
        assert pool.publish(page, digest)


def test_free_pages_go_out_lowest_number_first() -> None:
    pool = PagePool(6, 16)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.release([2])
    pool.release([0])
    assert pool.take(3) == [0, 2, 4]


def test_more_than_available_is_refused_and_nothing_is_taken() -> None:
    pool = PagePool(3, 16)
    pool.take(2)
    with pytest.raises(PagesExhaustedError, match="2 pages are asked for, 1 of 3"):
        pool.take(2)
    assert (pool.available, pool.in_use) == (1, 2)
    assert pool.take(0) == []


def test_a_shared_page_counts_once_and_stays_until_its_last_user_goes() -> None:
    pool = PagePool(4, 16)
    pages = pool.take(2)
    pool.share(pages)
    assert pool.in_use == 2
    assert pool.users() == {0: 2, 1: 2}
    pool.release(pages)
    assert pool.in_use == 2
    pool.release(pages)
    assert (pool.in_use, pool.available) == (0, 4)


def test_the_peak_is_of_pages_in_use_and_can_be_started_anew() -> None:
    pool = PagePool(8, 16)
    pages = pool.take(5)
    publish(pool, pages, names(5))
    pool.release(pages)
    assert pool.peak_in_use == 5
    pool.reset_peak()
    assert pool.peak_in_use == 0
    pool.share(pages[:3])
    assert pool.peak_in_use == 3
    pool.reset_peak()
    assert pool.peak_in_use == 3


def test_published_pages_are_found_after_their_release_until_their_room_is_needed() -> None:
    pool = PagePool(4, 16)
    pages = pool.take(3)
    publish(pool, pages, names(3))
    pool.release(pages)
    assert (pool.available, pool.in_use, pool.kept) == (4, 0, 3)
    assert [pool.find(name) for name in names(3)] == pages
    assert pool.take(1) == [3]  # the one free page goes first
    assert pool.kept == 3


def test_the_end_of_a_sequence_is_evicted_before_its_beginning() -> None:
    pool = PagePool(3, 16)
    pages = pool.take(3)
    publish(pool, pages, names(3))
    pool.release(pages)
    for gone in (2, 1, 0):
        assert pool.take(1) == [pages[gone]]
        assert [pool.find(name) for name in names(3)] == [*pages[:gone], *[None] * (3 - gone)]


def test_the_longest_unused_is_evicted_first() -> None:
    pool = PagePool(3, 16)
    pages = pool.take(3)
    publish(pool, pages, names(3))
    for page in pages:
        pool.release([page])
    pool.share([pages[0]])
    pool.release([pages[0]])
    assert pool.take(2) == [pages[1], pages[2]]
    assert pool.find(names(1)[0]) == pages[0]


def test_unused_tells_what_sharing_would_take_from_what_is_available() -> None:
    pool = PagePool(4, 16)
    pages = pool.take(3)
    publish(pool, pages, names(3))
    pool.release(pages[1:])
    assert pool.unused(pages) == 2
    before = pool.available
    pool.share(pages)
    assert before - pool.available == 2


def test_a_second_page_of_equal_content_is_not_published() -> None:
    pool = PagePool(4, 16)
    first, second = pool.take(2)
    assert pool.publish(first, b"x")
    assert pool.publish(first, b"x")
    assert not pool.publish(second, b"x")
    pool.release([second])
    assert pool.find(b"x") == first
    assert pool.kept == 0


def test_forget_frees_what_is_kept_and_leaves_what_is_in_use() -> None:
    pool = PagePool(4, 16)
    pages = pool.take(3)
    publish(pool, pages, names(3))
    pool.release(pages[1:])
    pool.forget()
    pool.check()
    assert (pool.kept, pool.in_use, pool.available) == (0, 1, 3)
    assert [pool.find(name) for name in names(3)] == [None] * 3
    pool.release(pages[:1])
    assert pool.take(4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda pool: pool.release([1]), "page 1 is released, but nobody holds it"),
        (lambda pool: pool.share([1]), "page 1 is free"),
        (lambda pool: pool.publish(1, b"x"), "page 1 is published, but nobody holds it"),
    ],
)
def test_misuse_is_told(misuse: object, message: str) -> None:
    pool = PagePool(2, 16)
    pool.take(1)
    with pytest.raises(RuntimeError, match=message):
        misuse(pool)  # type: ignore[operator]
    pool.check()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._free.append(0), r"pages \[0\] are lost, or free and in use"),
        (lambda pool: pool._free.clear(), r"pages \[3, 4, 5\] are lost"),
        (lambda pool: pool._kept.popitem(), r"pages \[\d\] are lost"),
        (lambda pool: pool._users.__setitem__(0, -1), "page 0 has -1 users"),
        (lambda pool: pool._users.__setitem__(0, 0), r"pages \[0\] are lost"),
        (lambda pool: pool._digest_of.pop(2), "page 2 is kept, but found by no digest"),
        (lambda pool: pool._digest_of.__setitem__(3, b"y"), "page 3 is free, but still found"),
        (lambda pool: pool._page_of.__setitem__(b"y", 0), "do not lead to each other"),
    ],
)
def test_the_check_finds_damage(damage: object, message: str) -> None:
    pool = PagePool(6, 16)
    pages = pool.take(6)
    publish(pool, pages[:3], names(3))
    pool.release(pages[1:])
    pool.check()
    damage(pool)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=message):
        pool.check()


def test_pages_that_were_never_taken_cost_nothing() -> None:
    pool = PagePool(10**15, 16)
    assert pool.take(3) == [0, 1, 2]
    pool.release([1])
    assert pool.take(2) == [1, 3]
    assert pool.available == 10**15 - 4
    pool.check()
    with pytest.raises(RuntimeError, match="free"):
        pool.share([10**14])


@pytest.mark.parametrize(("pages", "size"), [(0, 16), (4, 0), (-1, 16)])
def test_a_pool_of_nothing_is_refused(pages: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one page of at least one token"):
        PagePool(pages, size)


@given(data=st.data(), pages=st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_random_use_agrees_with_plain_counting(data: st.DataObject, pages: int) -> None:
    pool = PagePool(pages, 4)
    held: list[list[int]] = []
    named = 0
    peak = 0
    for _ in range(data.draw(st.integers(1, 40))):
        move = data.draw(st.sampled_from(["take", "release", "share", "publish"]))
        if move == "take":
            count = data.draw(st.integers(0, pool.available))
            taken = pool.take(count)
            assert not set(taken) & {page for holding in held for page in holding}
            held.append(taken)
        elif held and move == "release":
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif held and move == "share":
            shared = list(data.draw(st.sampled_from(held)))
            pool.share(shared)
            held.append(shared)
        elif held and move == "publish":
            for page in data.draw(st.sampled_from(held)):
                if page not in pool._digest_of:
                    named += 1
                    pool.publish(page, named.to_bytes(4, "little"))
        counts = Counter(page for holding in held for page in holding)
        peak = max(peak, len(counts))
        assert pool.users() == counts
        assert (pool.in_use, pool.available, pool.peak_in_use) == (len(counts), pages - len(counts), peak)
        pool.check()
