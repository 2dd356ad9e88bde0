from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from weight_files import check, example, message, save_bin, sharded

from inferometer.errors import ModelError
from inferometer.nn.load import open_checkpoint
from inferometer.nn.safetensors import SafetensorsSource

FORMATS: dict[str, Callable[[dict[str, Tensor], Path], None]] = {"model.safetensors": save_file, "pytorch_model.bin": save_bin}
formats = pytest.mark.parametrize(("name", "save"), FORMATS.items())


@formats
def test_one_file(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    save(example(), tmp_path / name)
    source = open_checkpoint(tmp_path)
    assert source.where("a.weight") == str(tmp_path / name)
    assert source.dtype is torch.float16  # 24 of 39 floating elements
    check(source, example())


@formats
def test_shards(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    index = sharded(tmp_path, name, save, example())
    source = open_checkpoint(tmp_path)
    assert source.where("a.weight").endswith(("00001-of-00002.safetensors", "00001-of-00002.bin"))
    assert source.where("b.weight").endswith(("00002-of-00002.safetensors", "00002-of-00002.bin"))
    assert source.where("nowhere") == str(index)
    check(source, example())


@formats
def test_a_tensor_in_two_shards_is_taken_from_where_the_index_says(
    tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]
) -> None:
    index = sharded(tmp_path, name, save, example())
    second = tmp_path / json.loads(index.read_text())["weight_map"]["b.weight"]
    save({"b.weight": example()["b.weight"], "mask": example()["mask"], "a.weight": torch.zeros(6, 4)}, second)
    content = json.loads(index.read_text())
    content["weight_map"] = {k: v for k, v in content["weight_map"].items() if k in ("a.weight", "b.weight", "c.weight")}
    index.write_text(json.dumps(content))
    source = open_checkpoint(tmp_path)
    assert torch.equal(source.read("a.weight", "cpu", torch.float16), example()["a.weight"])
    assert "mask" in source.tensors()  # a shard's tensor that the index does not know is there all the same


@formats
def test_a_file_that_may_not_be_read_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, save: Callable[[dict[str, Tensor], Path], None]
) -> None:
    """It is neither torn nor missing, and to fetch it again would not help."""
    save(example(), tmp_path / name)
    before = Path.open

    def closed(path: Path, *how: Any, **more: Any) -> Any:  # whoever runs the tests may read everything, perhaps
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return before(path, *how, **more)

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(ModelError) as error:
        open_checkpoint(tmp_path)
    assert str(error.value) == f"{tmp_path / name}: Permission denied; change who may read it, or name another model"


@formats
def test_a_missing_shard_is_named(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    index = sharded(tmp_path, name, save, example())
    shard = json.loads(index.read_text())["weight_map"]["b.weight"]
    (tmp_path / shard).unlink()
    with pytest.raises(ModelError) as error:
        open_checkpoint(tmp_path)
    message(error, str(index), shard, "missing")


@formats
def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    index = sharded(tmp_path, name, save, example())
    content = json.loads(index.read_text())
    content["weight_map"]["ghost.weight"] = content["weight_map"]["a.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError) as error:
        open_checkpoint(tmp_path)
    message(error, "ghost.weight", content["weight_map"]["a.weight"])


@formats
@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '{"weight_map": []}', "\x00", "[" * 100_000],
    ids=range(9),
)
def test_a_broken_index_is_named(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None], content: str) -> None:
    index = tmp_path / f"{name}.index.json"
    index.write_text(content)
    with pytest.raises(ModelError) as error:
        open_checkpoint(tmp_path)
    message(error, str(index))


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "", "..", "."])
def test_shards_lie_beside_their_index(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    save_file(example(), tmp_path / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": file}}))
    with pytest.raises(ModelError, match="not a plain file name"):
        open_checkpoint(folder)


@formats
def test_every_truncation_is_refused(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    path = tmp_path / name
    save(example(), path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 1, 61), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError) as error:
            open_checkpoint(path)
        message(error, str(path))


@formats
@settings(max_examples=120, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_never_raise_anything_else(
    tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None], data: st.DataObject
) -> None:
    path = tmp_path / name
    save(example(), path)
    content = bytearray(path.read_bytes())
    for bit in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=4)):
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    refusal = outcome(path)
    if refusal is not None:
        assert str(path) in refusal
        assert "\n" not in refusal


def outcome(path: Path) -> str | None:
    """The refusal of a checkpoint, None if all of it can be read; anything but a ModelError goes through."""
    try:
        source = open_checkpoint(path)
        for tensor in source.tensors():
            source.read(tensor, "cpu", torch.float32)
    except ModelError as error:
        return str(error)
    return None


@pytest.mark.parametrize("length", [0, 1, 2**32, 2**63])
def test_a_safetensors_header_of_absurd_length_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + bytes(64))
    with pytest.raises(ModelError) as error:
        SafetensorsSource(path)
    message(error, str(path))


@formats
def test_integers_are_no_weights(tmp_path: Path, name: str, save: Callable[[dict[str, Tensor], Path], None]) -> None:
    save({"w": torch.ones(2, dtype=torch.int64)}, tmp_path / name)
    source = open_checkpoint(tmp_path)
    assert source.dtype is None
    with pytest.raises(ModelError) as error:
        source.read("w", "cpu", torch.float32)
    message(error, str(tmp_path / name), "the tensor w", "64")


def test_the_preferred_file_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights \(model\.safetensors"):
        open_checkpoint(tmp_path)
    save_bin({"bin": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert "bin" in open_checkpoint(tmp_path).tensors()
    save_file({"other": torch.ones(1)}, tmp_path / "consolidated.safetensors")
    assert "bin" in open_checkpoint(tmp_path).tensors()
    (tmp_path / "pytorch_model.bin").unlink()
    assert "other" in open_checkpoint(tmp_path).tensors()
    save_file({"two": torch.ones(1)}, tmp_path / "second.safetensors")
    with pytest.raises(ModelError, match=r"2 \*\.safetensors files"):
        open_checkpoint(tmp_path)
    save_file({"model": torch.ones(1)}, tmp_path / "model.safetensors")
    assert "model" in open_checkpoint(tmp_path).tensors()
    assert "two" in open_checkpoint(tmp_path / "second.safetensors").tensors()


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.h5").write_bytes(b"x")
    with pytest.raises(ModelError, match="not a weight file"):
        open_checkpoint(tmp_path / "weights.h5")
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "absent.safetensors")
