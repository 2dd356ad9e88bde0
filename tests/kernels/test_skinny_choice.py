"""What was measured is read back; what cannot be read is measured anew; where no kernel serves, none is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.kernels import skinny_choice
from inferometer.kernels.skinny_choice import BUCKETS, SCHEMA_VERSION, Shape, bucket, choice_path, launch_for, load_choices, save_choices
from inferometer.kernels.skinny_launch import MOST_ROWS, Tiling, tiling

LAUNCH = Tiling(64, 128, 4, 4, 2, early=True)
CHOICES = {
    Shape("bfloat16", 1, 2048, 8192): None,
    Shape("bfloat16", 8, 2048, 8192): LAUNCH,
    Shape("bfloat16", 8, 2048, 8192, "int4 g32"): Tiling(128, 32, 4, 4, 4, early=True),
}


@pytest.mark.parametrize(("rows", "wanted"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (16, 16), (17, 32), (32, 32)])
def test_bucket(rows: int, wanted: int) -> None:
    assert bucket(rows) == wanted
    assert wanted in BUCKETS


class TestFile:
    def test_reads_what_was_written(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "choices.json"
        assert load_choices(path) == {}
        assert save_choices(path, CHOICES)
        assert load_choices(path) == CHOICES

    def test_adds_to_what_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "choices.json"
        save_choices(path, CHOICES)
        more = {Shape("float16", 1, 8, 8): LAUNCH, Shape("bfloat16", 1, 2048, 8192): LAUNCH}
        save_choices(path, more)
        assert load_choices(path) == CHOICES | more
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "{}", f'{{"schema_version": {SCHEMA_VERSION}, "choices": [3]}}'])
    def test_damage_is_ignored_and_written_over(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "choices.json"
        path.write_bytes(text.encode("latin-1"))
        assert load_choices(path) == {}
        assert save_choices(path, CHOICES)
        assert load_choices(path) == CHOICES

    @pytest.mark.parametrize(
        ("part", "name", "value"),
        [
            ("launch", "block", 100),
            ("launch", "block", "128"),
            ("launch", "block", 32),
            ("launch", "outputs", 0),
            ("launch", "warps", 64),
            ("launch", "stages", -1),
            ("launch", "programs", -1),
            ("launch", "programs", 1.5),
            ("launch", "early", 1),
            ("launch", "speed", 1),
            ("shape", "rows", 3),
            ("shape", "rows", True),
            ("shape", "outputs", -1),
            ("shape", "dtype", None),
            ("shape", "weight", 4),
        ],
    )
    def test_what_no_kernel_could_take_is_ignored(self, tmp_path: Path, part: str, name: str, value: Any) -> None:
        path = tmp_path / "choices.json"
        save_choices(path, {Shape("bfloat16", 8, 64, 64): LAUNCH})
        stored = json.loads(path.read_text())
        stored["choices"][0][part][name] = value
        path.write_text(json.dumps(stored))
        assert load_choices(path) == {}

    def test_another_version_is_ignored(self, tmp_path: Path) -> None:
        path = tmp_path / "choices.json"
        save_choices(path, CHOICES)
        path.write_text(path.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 3'))
        assert load_choices(path) == {}

    def test_a_folder_that_cannot_be_made_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert not save_choices(tmp_path / "file" / "choices.json", CHOICES)

    def test_one_file_a_device_in_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INFEROMETER_HOME", str(tmp_path))
        path = choice_path("NVIDIA H100 80GB HBM3")
        assert path.parent == tmp_path / "kernels"
        assert path.name.startswith("skinny-nvidia-h100-80gb-hbm3-torch-")
        assert path != choice_path("NVIDIA H200")


def on_gpu(shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16) -> Any:
    """A tensor that says that it is on a GPU: all that a choice looks at."""

    class Fake:
        device = torch.device("cuda", 0)

        def __init__(self) -> None:
            self.shape, self.dtype = torch.Size(shape), dtype

        def dim(self) -> int:
            return len(shape)

        def stride(self, dimension: int) -> int:
            return 1

        def is_contiguous(self) -> bool:
            return True

    return Fake()


class TestLaunchFor:
    @pytest.fixture(autouse=True)
    def card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(skinny_choice, "usable", lambda device: True)
        monkeypatch.setattr(skinny_choice, "capability", lambda device: (9, 0))
        monkeypatch.setattr(skinny_choice, "processors", lambda device: 132)

    def test_the_table_decides_until_something_is_measured(self) -> None:
        assert launch_for(on_gpu((3, 64)), on_gpu((128, 64)), {}) == tiling(3, 128, 64, 132)

    @pytest.mark.parametrize(("rows", "wanted"), [(1, None), (2, LAUNCH), (3, tiling(3, 128, 64, 132))])
    def test_what_was_measured_comes_first(self, rows: int, wanted: Tiling | None) -> None:
        assert launch_for(on_gpu((rows, 64)), on_gpu((128, 64)), {1: None, 2: LAUNCH}) == wanted

    @pytest.mark.parametrize("rows", [0, MOST_ROWS + 1, 5000])
    def test_not_for_many_rows(self, rows: int) -> None:
        assert launch_for(on_gpu((rows, 64)), on_gpu((128, 64)), {32: LAUNCH}) is None

    def test_not_for_float32(self) -> None:
        assert launch_for(on_gpu((1, 64), torch.float32), on_gpu((128, 64), torch.float32), {1: LAUNCH}) is None

    def test_not_on_a_cpu(self) -> None:
        assert launch_for(torch.ones(1, 64).half(), torch.ones(4, 64).half(), {1: LAUNCH}) is None

    def test_before_ampere_only_whole_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(skinny_choice, "capability", lambda device: (7, 5))
        assert launch_for(on_gpu((1, 64)), on_gpu((128, 64)), {}) is not None
        assert launch_for(on_gpu((4, 64)), on_gpu((128, 64)), {}) is not None
        assert launch_for(on_gpu((5, 64)), on_gpu((128, 64)), {}) is None
