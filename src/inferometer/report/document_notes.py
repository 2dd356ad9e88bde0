from __future__ import annotations


def notes_on(document: str) -> tuple[str, ...]:
    return ()
