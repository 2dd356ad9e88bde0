"""The page at `/docs`: our OpenAPI document as plain HTML, without a script and without anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from inferometer.server.page import Page

Json = Mapping[str, Any]


def docs_page(document: Json) -> Page:
    """The page of an OpenAPI document: its operations by tag, then its schemas."""
    frame = files("inferometer.server").joinpath("docs_page.html").read_text("utf-8")
    info = document["info"]
    parts = {
        "title": escape(info["title"]),
        "version": escape(info["version"]),
        "description": escape(info["description"]),
        "operations": "".join(_operations(document)),
        "schemas": "".join(_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())),
    }
    for name, part in parts.items():
        frame = frame.replace(f"{{{{ {name} }}}}", part)
    return Page(frame.encode("utf-8"))


def _operations(document: Json) -> Iterator[str]:
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    for tag, shown in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>{''.join(shown)}"


def _operation(path: str, method: str, operation: Json) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    rows = [
        f"<tr><td>body</td><td>{escape(media)}</td><td>{_type(each['schema'])} {_example(each)}</td></tr>" for media, each in body.items()
    ]
    for status, response in operation["responses"].items():
        contents = response.get("content") or {"": {"schema": {}}}
        for media, each in contents.items():
            meaning = f"{_content(each)} <span>{escape(response['description'])}</span>"
            rows.append(f"<tr><td>{status}</td><td>{escape(media)}</td><td>{meaning}</td></tr>")
    return (
        f'<details><summary><b class="{method}">{method.upper()}</b> <code>{escape(path)}</code> {escape(operation["summary"])}</summary>'
        f"<table><tbody>{''.join(rows)}</tbody></table></details>"
    )


def _content(media: Json) -> str:
    if "itemSchema" not in media:
        return _type(media["schema"])
    data = media["itemSchema"]["properties"]["data"]
    several = data.get("anyOf", (data,))
    return f"events of {' or '.join(_type(each.get('contentSchema', each)) for each in several)}"


def _example(media: Json) -> str:
    return f"<code>{escape(json.dumps(media['example']))}</code>"


def _schema(name: str, schema: Json) -> str:
    needed = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{'required' if field in needed else ''}</td><td>{_type(each)}</td></tr>"
        for field, each in schema.get("properties", {}).items()
    )
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> {escape(schema.get("description", ""))}</summary>'
        f"<table><tbody>{rows}</tbody></table></details>"
    )


def _type(schema: Json) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "const" in schema:
        return escape(json.dumps(schema["const"]))
    if "enum" in schema:
        return " | ".join(escape(json.dumps(value)) for value in schema["enum"])
    kind = str(schema.get("type", "anything" if schema.get("title") else ""))
    if kind == "array":
        return f"list of {_type(schema.get('items') or {'title': 'items'})}"
    return escape(kind) + _bounds(schema)


def _bounds(schema: Json) -> str:
    least, most, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMaximum")
    words = [] if least is None else [f"from {least:g}"]
    words += [] if most is None else [f"to {most:g}"]
    words += [] if above is None else [f"below {above:g}"]
    return f" <span>{' '.join(words)}</span>" if words else ""
