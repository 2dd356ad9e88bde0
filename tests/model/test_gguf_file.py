from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_models import tiny, write
from inferometer.errors import ModelError
from inferometer.model.gguf import gguf_config
from inferometer.model.gguf_file import BLOCK_TYPES, GgufArray, GgufFile
from inferometer.model.gguf_names import hugging_face_tensors

U32, STRING, ARRAY = 4, 8, 9


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(*pairs: bytes, tensors: int = 0, version: int = 3, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs) if count is None else count) + b"".join(pairs)


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def refusal(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = {"tokenizer.ggml.tokens": [f"t{i}é" for i in range(40)], "tokenizer.ggml.token_type": list(range(40))}
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf", "llama", tiny("llama"), general=tokens)


def test_reads_what_the_gguf_package_reads(small: Path) -> None:
    theirs = gguf.GGUFReader(small)
    with GgufFile(small) as ours:
        assert set(ours.metadata) == {k for k in theirs.fields if not k.startswith("GGUF.")}
        for key, value in ours.metadata.items():
            assert (ours.values(key) if isinstance(value, GgufArray) else value) == theirs.fields[key].contents()
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for tensor in theirs.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.shape == tuple(int(n) for n in tensor.shape[::-1])
            assert (mine.type_code, mine.offset, mine.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
            assert bytes(ours.data(tensor.name)) == tensor.data.tobytes()


def test_block_types_are_those_of_the_gguf_package() -> None:
    for code, block in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (block.name, (block.size, block.nbytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    path.write_bytes(header(pair("a.b", U32, struct.pack("<I", 7)), version=2))
    with GgufFile(path) as file:
        assert file.metadata == {"a.b": 7}


def test_a_tensor_view_may_outlive_the_file(small: Path) -> None:
    file = GgufFile(small)
    view = np.frombuffer(file.data("output_norm.weight"), dtype=np.float32)
    file.close()
    assert np.isfinite(view).all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"GG", "truncated"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(count=2**63), "truncated"),
        (header(tensors=2**64 - 1), "truncated"),
        (header(struct.pack("<Q", 2**64 - 1) + b"x"), "truncated"),
        (header(pair("k", 99, b"")), "unknown type 99"),
        (header(pair("k", ARRAY, struct.pack("<IQ", U32, 2**62))), "truncated"),
        (header(pair("k", ARRAY, struct.pack("<IQ", STRING, 2**62))), "truncated"),
        (header(pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + struct.pack("<Q", 2**64 - 1))), "truncated"),
        (header(pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1))), "elements of type 9"),
        (header(pair("k", U32, bytes(4)), pair("k", U32, bytes(4))), "occurs twice"),
        (header(pair("k", STRING, text(b"\xff\xfe"))), "not UTF-8"),
        (header(pair("general.alignment", U32, struct.pack("<I", 24))), "general.alignment"),
        (header(pair("general.alignment", U32, bytes(4))), "general.alignment"),
        (header(tensors=1) + text("w") + struct.pack("<I", 9), "9 dimensions"),
        (header(tensors=1) + text("w") + struct.pack("<IQIQ", 1, 0, 0, 0), "empty dimension"),
        (header(tensors=1) + text("w") + struct.pack("<IQIQ", 1, 4, 0, 3) + bytes(64), "multiple of 32"),
        (header(tensors=1) + text("w") + struct.pack("<IQIQ", 1, 33, 8, 0) + bytes(64), "no multiple of Q8_0"),
        (header(tensors=1) + text("w") + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0) + bytes(64), "tensor w ends"),
        (header(tensors=1) + text("w") + struct.pack("<IQIQ", 1, 4, 0, 2**63) + bytes(64), "tensor w ends"),
        (header(tensors=2) + 2 * (text("w") + struct.pack("<IQIQ", 1, 4, 0, 0)) + bytes(64), "tensor w occurs twice"),
    ],
)
def test_refuses_damage_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content)


def test_refuses_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be opened"):
            GgufFile(path)


def test_every_truncation_is_refused(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    with GgufFile(small) as file:
        last = max(t.offset + t.nbytes for t in file.tensors.values())
        data = min(t.offset for t in file.tensors.values())
    path = tmp_path / "cut.gguf"
    for length in [*range(0, data, 7), *range(data, last, 4099), last - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GgufFile(path)


@settings(max_examples=150, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_refused_or_harmless(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    with GgufFile(small) as file:
        end = min(t.offset for t in file.tensors.values())
    for bit in data.draw(st.lists(st.integers(0, 8 * end - 1), min_size=1, max_size=4)):
        content[bit // 8] ^= 1 << bit % 8
    path = tmp_path / "flipped.gguf"
    path.write_bytes(content)
    message = outcome(path)
    if message is not None:
        assert str(path) in message
        assert "\n" not in message


def outcome(path: Path) -> str | None:
    """The refusal of a file, None if all of it can be read; anything but a ModelError goes through."""
    try:
        config = gguf_config(path)
        with GgufFile(path) as file:
            assert config["num_hidden_layers"] <= len(hugging_face_tensors(file))
            for key, value in file.metadata.items():
                if isinstance(value, GgufArray):
                    file.values(key)
    except ModelError as error:
        return str(error)
    return None
