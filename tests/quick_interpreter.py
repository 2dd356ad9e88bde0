"""Triton's interpreter without what it does in vain, which is more than half of its time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, Final

_KNOWN: Final = "3.7."


def quicken() -> None:
    """Of a process that interprets kernels: every result stays as it is. Another version of Triton than the known one stays whole.

    - Sums of integers are done again in 64 bits for a check of overflow, which is then left out as the interpreter is not debugging.
    - A function that a kernel calls has the language patched at each call, as the kernel's launch has already done.
    - Types and shapes, of which every operation makes several, are put together again from their parts each time, and the table of
      numpy's types with them; the few that there are, are remembered. So are the language's functions, which each launch looks for, and
      what type two types are computed in.
    - Blocks of equal shapes are brought to a common shape.
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
    _remember_types()
    _remember_functions()
    _shorten_operations()


def _remember_types() -> None:
    from triton.language import core
    from triton.runtime import interpreter

    unwrap, block_init, dtype_equal, numpy_type = (
        core._unwrap_if_constexpr,
        core.block_type.__init__,
        core.dtype.__eq__,
        interpreter._get_np_dtype,
    )
    plain = frozenset({int, float, bool, str, type(None), core.tensor, core.dtype, core.pointer_type, core.block_type})
    blocks: dict[tuple[tuple[int, ...], str], tuple[Any, int, str]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    numpy_types: dict[str, Any] = {}

    def unwrap_if_constexpr(value: Any) -> Any:
        kind = type(value)
        if kind in plain:
            return value
        return value.value if kind is core.constexpr else unwrap(value)

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([unwrap_if_constexpr(size) for size in (shape.values if type(shape) is core.tuple else shape)])
        known = blocks.get((sizes, element_ty.name)) if set(map(type, sizes)) == {int} else None
        if known is None:
            block_init(self, element_ty, shape)
            blocks[sizes, element_ty.name] = self.shape, self.numel, self.name
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known

    def init_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle = handle
        self.type = kind
        self.dtype = kind.scalar
        sizes = tuple(kind.shape.values) if kind.is_block() else ()
        known = shapes.get(sizes)
        if known is None:
            known = shapes[sizes] = core.constexpr(prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])
        self.numel, self.shape = known

    def equal(self: Any, other: Any) -> bool:
        return self is other or dtype_equal(self, other)

    def numpy_type_of(wanted: Any) -> Any:
        element = wanted.element_ty if type(wanted) is core.block_type else wanted
        known = numpy_types.get(element.name)
        if known is None:
            known = numpy_types[element.name] = numpy_type(wanted)
        return known

    core._unwrap_if_constexpr = unwrap_if_constexpr
    core.block_type.__init__ = init_block_type
    core.tensor.__init__ = init_tensor
    core.dtype.__eq__ = equal
    interpreter._get_np_dtype = numpy_type_of


def _remember_functions() -> None:
    from triton.language import core
    from triton.runtime import interpreter

    semantic = interpreter.interpreter_semantic
    checked = core.program_id.__code__  # what `builtin` makes: it refuses calls without semantics, which these never are
    members: dict[int, list[tuple[str, Any]]] = {}

    def patch_builtin(module: Any, builder: Any, scope: Any) -> None:
        if id(module) not in members:
            members[id(module)] = [(name, made(member)) for name, member in inspect.getmembers(module) if core.is_builtin(member)]
        for name, member in members[id(module)]:
            scope.set_attr(module, name, member)

    def made(member: Any) -> Callable[..., Any]:
        inner = member.__wrapped__ if getattr(member, "__code__", None) is checked else member

        def function(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return inner(*arguments, **named)

        return function

    interpreter._patch_builtin = patch_builtin


def _shorten_operations() -> None:
    from triton.language.core import block_type
    from triton.language.semantic import TritonSemantic

    broadcast, computed_in = TritonSemantic.broadcast_impl_value, TritonSemantic.computation_type_impl
    types: dict[tuple[str, bool, str, bool, bool], Any] = {}

    def broadcast_impl_value(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        one, other = left.type, right.type
        if type(one) is type(other) is block_type and one.shape.values == other.shape.values:
            return left, right
        both: tuple[Any, Any] = broadcast(self, left, right)
        return both

    def computation_type_impl(self: Any, one: Any, one_is_scalar: bool, other: Any, other_is_scalar: bool, div_or_mod: bool) -> Any:
        key = one.name, one_is_scalar, other.name, other_is_scalar, div_or_mod
        if key not in types:
            types[key] = computed_in(self, one, one_is_scalar, other, other_is_scalar, div_or_mod)
        return types[key]

    TritonSemantic.broadcast_impl_value = broadcast_impl_value
    TritonSemantic.computation_type_impl = computation_type_impl
