"""Weights in the files of torch.save: nothing but tensors is read from them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from weight_files import check, example, message, save_bin, sharded

from inferometer.errors import ModelError
from inferometer.nn.load import open_checkpoint
from inferometer.nn.torch_bin import TorchBinSource


class Exploit:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (f"open({str(self.target)!r}, 'w').close()",)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_carries_code_is_not_run(tmp_path: Path, legacy: bool) -> None:
    path, target = tmp_path / "pytorch_model.bin", tmp_path / "ran"
    torch.save({"w": torch.ones(2), "x": Exploit(target)}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ModelError) as error:
        TorchBinSource(path)
    message(error, str(path), "other than tensors")
    path.write_bytes(pickle.dumps(Exploit(target)))
    with pytest.raises(ModelError) as error:
        TorchBinSource(path)
    message(error, str(path))
    assert not target.exists()


def test_the_format_before_torch_1_6_is_read(tmp_path: Path) -> None:
    torch.save(example(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    check(open_checkpoint(tmp_path), example())


def test_only_mappings_of_tensors_are_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    for content, words in ((torch.ones(2), "holds a Tensor"), ({"epoch": 3}, "'epoch'"), ({3: torch.ones(1)}, "'3'")):
        torch.save(content, path)
        with pytest.raises(ModelError) as error:
            TorchBinSource(path)
        message(error, str(path), words)


def test_torch_tensors_that_cannot_be_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    for tensor in (torch.ones(2, 3, device="meta"), torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.int8)):
        torch.save({"a.weight": tensor}, path)
        with pytest.raises(ModelError, match=r"pytorch_model\.bin: the tensor a\.weight"):
            TorchBinSource(path).read("a.weight", "cpu", torch.float32)


def test_tied_tensors_in_a_torch_file(tmp_path: Path) -> None:
    table = torch.arange(6.0).view(3, 2)
    torch.save({"table": table, "head": table, "slice": table[1:], "turned": table.t()}, tmp_path / "pytorch_model.bin")
    check(open_checkpoint(tmp_path), {"table": table, "head": table, "slice": table[1:], "turned": table.t()})


def test_one_torch_shard_is_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(tmp_path, "pytorch_model.bin", save_bin, example())
    source = open_checkpoint(tmp_path)
    opened: list[str] = []
    real = torch.load

    def counted(path: Path, **options: object) -> object:
        assert options["weights_only"] is True
        assert options["mmap"] is True
        opened.append(path.name)
        return real(path, **options)

    monkeypatch.setattr(torch, "load", counted)
    for name in sorted(source.tensors(), key=source.where):
        if name != "mask":
            source.read(name, "cpu", torch.float32)
    assert len(opened) == 2
