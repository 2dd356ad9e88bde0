"""Ranks that torchrun has started, on one machine or several: what the environment says of this one, and how it finds rank 0."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.engine.parallel.store import Store

_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Torchrun:
    """A process that torchrun (or whoever sets the same variables) has started as number `rank` of `size`.

    local_rank, local_size: among those on its machine. address, port: where the ranks' store is. hosted: whether torchrun holds that store;
    else rank 0 does. attempt: how often torchrun has started the ranks anew.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    hosted: bool
    attempt: str = "0"

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Torchrun | None:
        """This process, None where it was started otherwise or alone. Raises UserError for variables that make no sense."""
        given = os.environ if environment is None else environment
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= given.keys():
            return None
        numbers = {}
        for name, default in (("RANK", ""), ("WORLD_SIZE", ""), ("MASTER_PORT", ""), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
            text = given.get(name, default)
            if not text.isdecimal():
                raise UserError(f"{name}={text!r} in the environment is no number; start ranks with torchrun, or unset {name}")
            numbers[name] = int(text)
        if not numbers["RANK"] < numbers["WORLD_SIZE"]:
            raise UserError(f"RANK={numbers['RANK']} is none of WORLD_SIZE={numbers['WORLD_SIZE']}; start ranks with torchrun")
        if numbers["WORLD_SIZE"] == 1:
            return None
        return cls(
            rank=numbers["RANK"],
            size=numbers["WORLD_SIZE"],
            local_rank=numbers["LOCAL_RANK"],
            local_size=numbers["LOCAL_WORLD_SIZE"],
            address=given["MASTER_ADDR"],
            port=numbers["MASTER_PORT"],
            hosted=given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=given.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )

    def store(self) -> Store:
        """The ranks' store. Waits for who holds it."""
        from inferometer.engine.parallel.store import join_store, part_of

        store = join_store(self.address, self.port, master=self.rank == 0 and not self.hosted)
        return part_of(store, f"inferometer/{self.attempt}")

    def lead(self, store: Store, port: int, token: str) -> None:
        """Rank 0 tells the others where it listens."""
        store.set("leader", json.dumps([port, token]))

    def leader(self, store: Store) -> tuple[tuple[str, int], str] | None:
        """Where rank 0 listens, and the word to say to it; None where it has ended without wanting anybody. Waits for either."""
        while not store.check(["leader"]):
            if store.check(["ended"]):
                return None
            time.sleep(_LOOK_S)  # the store waits for one key only, and writes warnings when it waits in vain
        port, token = json.loads(store.get("leader"))
        return (self.address, port), token

    def end(self) -> None:
        """Rank 0 is about to end: nobody need wait for it any more. A store of rank 0's own ends with it, which says the same."""
        if self.hosted:
            self.store().set("ended", b"1")
