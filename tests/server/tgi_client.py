"""Run by the environment of text-generation-inference's own client: makes the calls that standard input lists, prints what came of each.

In: {"url": ..., "calls": [[method, arguments], ...]}, with a method of `Client` or, as "async METHOD", of `AsyncClient`.
Out: a list of {"value": ...}, {"values": [...]} for a stream, or {"error": class, "message": ...}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from typing import Any

from text_generation import AsyncClient, Client


def plain(value: Any) -> Any:
    """A response as plain data."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


async def asked(client: Any, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What came of one call, of either client."""
    answer = getattr(client, method)(**arguments)
    if inspect.isawaitable(answer):
        answer = await answer
    if inspect.isasyncgen(answer):
        return {"values": [plain(value) async for value in answer]}
    if inspect.isgenerator(answer):
        return {"values": [plain(value) for value in answer]}
    return {"value": plain(answer)}


def main() -> None:
    wanted = json.load(sys.stdin)
    results = []
    for name, arguments in wanted["calls"]:
        kind = AsyncClient if name.startswith("async ") else Client
        try:
            results.append(asyncio.run(asked(kind(wanted["url"], timeout=60), name.removeprefix("async "), arguments)))
        except Exception as error:  # noqa: BLE001  (whatever the client raises is the answer)
            results.append({"error": type(error).__name__, "message": str(error)})
    json.dump(results, sys.stdout)


main()
