"""A sequence: a request on its way through the sweeps."""

from __future__ import annotations

from collections.abc import Sequence as Many

from inferometer.schedule.finish import end_tokens
from inferometer.schedule.request import Request


class Turns:
    """How often those that decode have gone on, by a token each and all together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Sequence:
    """A request, its tokens so far and what it holds. The scheduler alone changes it.

    request: what was asked. arrival: its place in the order of arrival, from 0. prompt: tokens of the prompt. limit: most tokens to
    generate. most_pages: pages it holds if it goes on to its limit; the last token's keys are never written.

    seat: its row in the state on the device, None while it has none. pages: where its keys and values lie, one page after another.
    tokens: prompt and generated tokens, as far as the host has read them.
    computed: positions whose keys and values launched sweeps write, or that were found in the prefix cache.
    launched: generated tokens that launched sweeps sample, read or not. While it decodes both grow with every turn, by themselves.
    scored: prompt positions whose log-probabilities launched sweeps yield.
    reached: the most that `computed` was before it last gave its seat back. cached: prompt tokens that were never computed, but found in
    the prefix cache.
    ended: nothing more comes of it: its last token was read, or it was aborted. ends: tokens that end it. longest: tokens at its limit.

    digests: of its full pages so far as anyone asked for them, behind the one of its salt. published: how many of its pages the pool
    finds by them. shadowed: the pool has another page for one of its digests, so that the pages behind are not published.
    preempted: how often it had to give its pages back. overtaken: how many that came later entered before it since it came to wait.
    group: the arrival of the first sequence of its group, None for admissions without groups.
    """

    __slots__ = (
        "_computed",
        "_launched",
        "_turns",
        "arrival",
        "cached",
        "digests",
        "ended",
        "ends",
        "group",
        "limit",
        "longest",
        "most_pages",
        "overtaken",
        "pages",
        "preempted",
        "prompt",
        "published",
        "reached",
        "request",
        "scored",
        "seat",
        "shadowed",
        "tokens",
    )

    def __init__(self, request: Request, *, arrival: int, most_pages: int, digests: Many[bytes]) -> None:
        self.request = request
        self.arrival = arrival
        self.prompt = len(request.prompt_token_ids)
        self.limit = request.params.max_new_tokens
        self.longest = self.prompt + self.limit
        self.ends = end_tokens(request)
        self.most_pages = most_pages
        self.seat: int | None = None
        self.pages: list[int] = []
        self.tokens: list[int] = list(request.prompt_token_ids)
        self._computed = 0  # while it decodes: less the count of turns
        self._launched = 0  # while it decodes: whatever it was before, as all its tokens but one are computed
        self._turns: Turns | None = None
        self.scored = 0
        self.reached = 0
        self.cached = 0
        self.ended = False
        self.digests: list[bytes] = list(digests)
        self.published = 0
        self.shadowed = False
        self.preempted = 0
        self.overtaken = 0
        self.group: int | None = None

    def __repr__(self) -> str:
        return f"Sequence(request {self.request.id}, {self.prompt} + {self.launched} tokens, {self.computed} computed, seat {self.seat})"

    @property
    def computed(self) -> int:
        """Positions whose keys and values are computed, or will be by sweeps under way."""
        turns = self._turns
        return self._computed if turns is None else self._computed + turns.count

    @computed.setter
    def computed(self, positions: int) -> None:
        assert self._turns is None
        self._computed = positions

    @property
    def launched(self) -> int:
        """Generated tokens, read or not."""
        turns = self._turns
        return self._launched if turns is None else self._computed + turns.count + 1 - self.prompt

    @property
    def offset(self) -> int:
        """While it decodes: `computed` less the count of turns, which stays."""
        return self._computed

    def follow(self, turns: Turns) -> None:
        """All its tokens are computed, so that another is sampled; from now on it decodes, and grows by whatever is counted there."""
        self._computed -= turns.count
        self._turns = turns

    def halt(self) -> None:
        """It decodes no longer."""
        self._computed, self._launched, self._turns = self.computed, self.launched, None

    @property
    def generated(self) -> int:
        """Generated tokens that the host has read."""
        return len(self.tokens) - self.prompt

    @property
    def length(self) -> int:
        """Tokens that exist, on the host or on the device alone."""
        turns = self._turns
        return self.prompt + self._launched if turns is None else self._computed + turns.count + 1

    @property
    def unread(self) -> int:
        """Tokens that exist on the device alone."""
        return self.length - len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are not yet computed."""
        return self.length - self.computed

    @property
    def remaining(self) -> int:
        """Tokens that are still to be launched if it goes on to its limit."""
        return self.limit - self.launched
