"""The GGUF container: its metadata, and where each tensor's bytes lie. Nothing here knows what a model is.

The header is read here rather than by the gguf package because that package builds arrays for every token of the vocabulary:
3.3 s on the 98 MB embedded model where this takes about 0.03 s. The numbers in the blocks are still the package's to decode.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Final

from inferometer.errors import ModelError

Scalar = int | float | bool

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    code: struct.Struct(f"<{letter}")
    for code, letter in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}.items()
}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class BlockType:
    """How ggml stores numbers: blocks of `size` elements in `nbytes` bytes."""

    name: str
    size: int
    nbytes: int


BLOCK_TYPES: Final[Mapping[int, BlockType]] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
"""The block types this product can read, by their number in the file."""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """A metadata array that has been measured, not decoded; `GgufFile.values` decodes it."""

    offset: int
    item_type: int
    count: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` is outermost dimension first, as torch writes it; `offset` counts bytes from the file's start.

    `block_type` is None where the type, number `type_code` in the file, is not one of BLOCK_TYPES; `nbytes` is then 0.
    """

    name: str
    shape: tuple[int, ...]
    type_code: int
    block_type: BlockType | None
    offset: int
    nbytes: int


Value = Scalar | str | GgufArray


class GgufFile:
    """An open GGUF file (versions 2 and 3, little-endian), mapped into memory.

    `metadata` maps keys to values, `tensors` names to where they lie; every tensor's bytes are within the file.
    Raises ModelError, naming the file, for anything that is not such a file in full.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as handle:
                # An empty file cannot be mapped; neither can a folder be opened.
                self._bytes: mmap.mmap | bytes = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) if handle.read(1) else b""
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path}: cannot be opened: {error}") from None
        self._size = len(self._bytes)
        self._at = 0
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file, unless memory views of its tensors are still in use: then the last of them does."""
        if isinstance(self._bytes, mmap.mmap):
            with suppress(BufferError):
                self._bytes.close()

    def values(self, key: str) -> list[Scalar] | list[str]:
        """The elements of the metadata array `key`. Raises ModelError where it is absent or no array."""
        array = self.metadata.get(key)
        if not isinstance(array, GgufArray):
            raise ModelError(f"{self.path}: the metadata has no array {key}")
        self._at = array.offset
        if array.item_type == _STRING:
            return [self._string() for _ in range(array.count)]
        reader = _SCALARS[array.item_type]
        data = self._bytes[array.offset : array.offset + array.count * reader.size]
        return [value for (value,) in reader.iter_unpack(data)]

    def data(self, name: str) -> memoryview:
        """The stored bytes of tensor `name`, without copying them."""
        tensor = self.tensors[name]
        return memoryview(self._bytes)[tensor.offset : tensor.offset + tensor.nbytes]

    def _read_header(self) -> None:
        magic = self._take(4) if self._size else b""
        if magic != _MAGIC:
            raise ModelError(f"{self.path}: not a GGUF file (it {'is empty' if not magic else f'begins with {magic!r}'})")
        version = self._unpack(_U32)
        if version and version & 0xFFFF == 0:
            raise ModelError(f"{self.path}: a big-endian GGUF file, which is not supported; convert it to little-endian")
        if version not in _VERSIONS:
            raise ModelError(
                f"{self.path}: GGUF version {version} is not supported, only {_VERSIONS[0]} and {_VERSIONS[1]}; convert it again"
            )
        tensor_count, pair_count = self._unpack(_U64), self._unpack(_U64)
        for _ in range(pair_count):
            key = self._name()
            if key in self.metadata:
                raise self._damaged(f"the metadata key {key} occurs twice")
            self.metadata[key] = self._value(self._unpack(_U32), key)
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        start = -(-self._at // alignment) * alignment
        for name, shape, type_code, offset in infos:
            if name in self.tensors:
                raise self._damaged(f"the tensor {name} occurs twice")
            if offset % alignment:
                raise self._damaged(f"the tensor {name} begins at {offset}, which is not a multiple of {alignment}")
            self.tensors[name] = self._tensor(name, shape, type_code, start + offset)

    def _tensor(self, name: str, shape: tuple[int, ...], type_code: int, offset: int) -> GgufTensor:
        block = BLOCK_TYPES.get(type_code)
        nbytes = 0
        if block is not None:
            if shape[-1] % block.size:
                raise self._damaged(f"the tensor {name} has rows of {shape[-1]} elements, no multiple of {block.name}'s {block.size}")
            nbytes = prod(shape) // block.size * block.nbytes
        if offset + nbytes > self._size:
            raise ModelError(
                f"{self.path}: truncated: the tensor {name} ends at byte {offset + nbytes}, the file at {self._size}; fetch it again"
            )
        return GgufTensor(name, shape, type_code, block, offset, nbytes)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._name()
        dimensions = self._unpack(_U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {name} has {dimensions} dimensions")
        shape = tuple(self._unpack(_U64) for _ in range(dimensions))[::-1]
        if not all(shape):
            raise self._damaged(f"the tensor {name} has an empty dimension")
        return name, shape, self._unpack(_U32), self._unpack(_U64)

    def _value(self, code: int, key: str) -> Value:
        if code == _STRING:
            return self._string()
        if code in _SCALARS:
            value: Scalar = _SCALARS[code].unpack(self._take(_SCALARS[code].size))[0]
            return value
        if code != _ARRAY:
            raise self._damaged(f"the metadata key {key} has the unknown type {code}")
        item_type, count = self._unpack(_U32), self._unpack(_U64)
        array = GgufArray(self._at, item_type, count)
        if item_type in _SCALARS:
            self._skip(count * _SCALARS[item_type].size)
        elif item_type == _STRING:
            self._skip_strings(count)
        else:
            raise self._damaged(f"the metadata array {key} has elements of type {item_type}")
        return array

    def _skip_strings(self, count: int) -> None:
        # The hot loop of describing a model: hundreds of thousands of tokens and merges to step over.
        at, read, size = self._at, _U64.unpack_from, self._size
        for _ in range(count):
            if at + 8 > size:
                break
            at += 8 + read(self._bytes, at)[0]
        else:
            if at <= size:
                self._at = at
                return
        raise self._truncated()

    def _name(self) -> str:
        # Names go into messages, which are of one line.
        name = self._string()
        if not name or not name.isprintable():
            raise self._damaged(f"the name that ends at byte {self._at} is {'empty' if not name else 'not printable'}")
        return name

    def _string(self) -> str:
        try:
            return self._take(self._unpack(_U64)).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"the text that ends at byte {self._at} is not UTF-8") from None

    def _unpack(self, reader: struct.Struct) -> int:
        value: int = reader.unpack(self._take(reader.size))[0]
        return value

    def _take(self, count: int) -> bytes:
        start = self._at
        self._skip(count)
        return self._bytes[start : self._at]

    def _skip(self, count: int) -> None:
        if count > self._size - self._at:
            raise self._truncated()
        self._at += count

    def _truncated(self) -> ModelError:
        return ModelError(f"{self.path}: truncated or damaged: the GGUF header runs past the file's {self._size} bytes; fetch it again")

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: damaged GGUF file: {what}")
