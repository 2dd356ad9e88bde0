"""The launches that a map in few bits may have, and the one that it has unless another was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inferometer.kernels import quant_launch
from inferometer.kernels.quant_launch import most_rows, quant_candidates, quant_tiling, words_possible
from inferometer.kernels.quant_linear import quant_linear_triton
from quant_cases import FORMATS, drawn_weight
from quant_products import fenced, whole


def test_words_of_one_thread_begin_where_it_may_read_them() -> None:
    """Two or four at a time: else such a launch would read beside them."""
    for name, inputs, served in (("int4 g64", 336, True), ("int4 g64", 328, False), ("int4 g128", 320, True), ("int4 g128", 336, False)):
        launches = quant_candidates(16, drawn_weight(7, inputs, **FORMATS[name]))
        assert any(launch.readied for launch in launches) == served
    assert not any(launch.readied for launch in quant_candidates(16, drawn_weight(7, 320, **FORMATS["int4 g32"])))


@pytest.mark.parametrize(("name", "inputs"), [("fp8", 33), ("int8", 50), ("int4 g32", 331), ("int4 all", 4)])
def test_rows_that_are_no_whole_words_are_left_to_others(name: str, inputs: int) -> None:
    weight = drawn_weight(7, inputs, **FORMATS[name])
    assert not words_possible(weight)
    assert quant_candidates(1, weight) == quant_candidates(16, weight) == ()
    for launch in (None, whole(weight, 2)):
        with pytest.raises(ValueError, match=r"whole words|no launch"):
            quant_linear_triton(fenced(1, inputs, torch.float32, 3), weight, launch=launch)


class TestTable:
    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("inputs", [8, 64, 768, 5120, 16384])
    @pytest.mark.parametrize("rows", [1, 3, 16])
    def test_something_serves_everything(self, rows: int, inputs: int, name: str) -> None:
        weight = drawn_weight(2, inputs, **FORMATS[name])
        launches = quant_candidates(rows, weight)
        assert quant_tiling(rows, weight) in launches
        assert len(set(launches)) == len(launches) > 1
        for launch in launches:
            assert all(size & (size - 1) == 0 for size in (launch.outputs, launch.block, launch.warps))
            assert launch.programs > 0
            assert not launch.whole or rows <= 4
            assert not launch.whole or launch.block >= inputs

    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("rows", [1, 2, 3, 4])
    def test_four_rows_are_not_held_whole_unless_that_was_measured(self, rows: int, name: str) -> None:
        """Nor are two and e4m3, whose rows are held in four bytes an input."""
        weight = drawn_weight(2, 4096, **FORMATS[name])
        first = quant_tiling(rows, weight)
        assert first is not None
        assert first.whole == (rows == 1 or (rows == 2 and weight.kind != "fp8"))

    @pytest.mark.parametrize("name", ["int8", "fp8"])
    @pytest.mark.parametrize("rows", [5, 16, 32])
    def test_what_is_fetched_ahead_fits_into_a_processor(self, monkeypatch: pytest.MonkeyPatch, rows: int, name: str) -> None:
        """Of 32 rows in three e4m3 numbers each, six stages of 256 inputs do not."""
        monkeypatch.setattr(quant_launch, "capability", lambda device: (9, 0))
        launches = [each for each in quant_candidates(rows, drawn_weight(512, 4096, **FORMATS[name])) if each.readied]
        assert max(each.stages for each in launches) == (4 if (rows, name) == (32, "fp8") else 6)
        numbers = 3 if name == "fp8" else 2
        assert all(each.stages * each.block * (each.outputs + numbers * max(16, rows)) <= 227 * 1024 for each in launches)

    @pytest.mark.parametrize(
        ("card", "rows", "readied"),
        [
            # int8, the same of a square map, with activations of 8 bits, e4m3 with those, and int4
            ((9, 0), 16, [True, False, False, False, True]),
            ((9, 0), 32, [True, True, False, True, False]),
            ((8, 0), 16, [False] * 5),
        ],
    )
    def test_rows_are_readied_first_where_that_was_measured(
        self, monkeypatch: pytest.MonkeyPatch, card: tuple[int, int], rows: int, readied: list[bool]
    ) -> None:
        monkeypatch.setattr(quant_launch, "capability", lambda device: card)
        wide, floats = drawn_weight(512, 256, "int8"), drawn_weight(512, 256, "fp8")
        rounding = [replace(wide, activations="int8"), replace(floats, activations="fp8")]
        weights = [wide, drawn_weight(256, 256, "int8"), *rounding, drawn_weight(8, 256, **FORMATS["int4 g64"])]
        chosen = [quant_tiling(rows, each) for each in weights]
        assert [launch is not None and launch.readied for launch in chosen] == readied

    def test_more_rows_take_more_outputs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(quant_launch, "capability", lambda device: (9, 0))
        chosen = [quant_tiling(rows, drawn_weight(512, 256, "int8")) for rows in (16, 17, 32)]
        assert [launch and launch.outputs for launch in chosen] == [64, 128, 128]

    @pytest.mark.parametrize("rows", [33, 64, 65, 128])
    @pytest.mark.parametrize(("outputs", "inputs"), [(512, 256), (256, 512), (256, 256)])
    def test_many_rows_are_in_bytes_on_hopper(self, monkeypatch: pytest.MonkeyPatch, rows: int, outputs: int, inputs: int) -> None:
        """Of int8 alone, with fewer inputs an iteration where outputs are more; more than 64 rows of others are for a weight widened as a
        whole."""
        monkeypatch.setattr(quant_launch, "capability", lambda device: (9, 0))
        monkeypatch.setattr(quant_launch, "MANY_WEIGHTS", 256 * 256 - 1)
        weight = drawn_weight(outputs, inputs, "int8")
        launches = quant_candidates(rows, weight)
        assert quant_tiling(rows, weight) == launches[0]
        assert launches[0].block == (128 if outputs > inputs else 256)
        padded = max(64, 1 << (rows - 1).bit_length())
        for each in launches:
            assert each.readied
            assert each.in_bytes
            assert each.stages * each.block * (each.outputs + 2 * padded) <= 227 * 1024
        assert most_rows(weight) == 128
        assert not quant_candidates(129, weight)
        others = replace(weight, activations="int8"), drawn_weight(512, 256, "fp8"), drawn_weight(256, 128, "int8")
        assert {most_rows(other) for other in others} == {64}
        monkeypatch.setattr(quant_launch, "capability", lambda device: (8, 0))
        assert most_rows(weight) == 64
        assert not any(each.readied for each in quant_candidates(rows, weight))

    @pytest.mark.parametrize("rows", [2, 3, 4])
    @pytest.mark.parametrize(
        ("name", "card", "in_bytes"), [("int8", (9, 0), True), ("int8", (8, 0), False), ("fp8", (9, 0), True), ("fp8", (8, 0), False)]
    )
    def test_few_rows_are_in_bytes_where_that_was_measured(
        self, monkeypatch: pytest.MonkeyPatch, rows: int, name: str, card: tuple[int, int], in_bytes: bool
    ) -> None:
        monkeypatch.setattr(quant_launch, "capability", lambda device: card)
        launch = quant_tiling(rows, drawn_weight(512, 256, name))
        assert launch is not None
        assert launch.in_bytes == in_bytes
        assert not launch.whole or (rows, name) == (2, "int8")
