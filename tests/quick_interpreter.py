"""Triton's interpreter without what it does in vain, which is more than half of its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

_KNOWN: Final = "3.7."


def quicken() -> None:
    """Of a process that interprets kernels: every result stays as it is. Another version of Triton than the known one stays whole.

    - Sums of integers are done again in 64 bits for a check of overflow, which is then left out as the interpreter is not debugging.
    - A function that a kernel calls has the language patched at each call, as the kernel's launch has already done.
    """
    import triton
    from triton.runtime import interpreter

    if not triton.__version__.startswith(_KNOWN):
        return
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "overflow is checked then"
    builder.options = replace(builder.options, sanitize_overflow=False)
    patch, language = interpreter._patch_lang, interpreter.tl
    patched: set[tuple[bool, bool]] = set()
    names: dict[Callable[..., Any], tuple[bool, bool]] = {}

    def modules(function: Callable[..., Any]) -> tuple[bool, bool]:
        """Which of the language's two modules the function sees: those are patched."""
        if function not in names:
            seen = [id(value) for value in function.__globals__.values()]
            names[function] = id(language) in seen, id(language.core) in seen
        return names[function]

    def patch_for_launch(function: Callable[..., Any]) -> Any:
        patched.clear()
        patched.add(modules(function))
        return patch(function)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if modules(self.fn) not in patched:
            patch(self.fn)
            patched.add(modules(self.fn))
        try:
            return self.rewrite()(*arguments, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter._patch_lang = patch_for_launch
    interpreter.InterpretedFunction.__call__ = call
