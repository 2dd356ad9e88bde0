"""The models known by name: their published sizes, their names and the cost of knowing them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferometer.model.parameters import parameter_count
from inferometer.model.presets import PRESETS, close_names, preset
from inferometer.model.spec import LearnedPositions, Llama3Scaling, Rotary

# Published by the models' authors, or counted from the checkpoints on the Hub.
PUBLISHED = {
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "bloom-560m": 559_214_592,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "bloomz-560m": 559_214_592,
    "bloomz-7b1": 7_069_016_064,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "doc004-1.3b": 1_311_535_104,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "smollm2-135m": 134_515_008,
    "starcoderbase-1b": 1_137_207_296,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "all-minilm-l6-v2": 22_713_216,
}
# As rounded in the tables that name the models, in millions.
ROUNDED = {
    "opt-66b": (65_720, 0.01),
    "opt-175b": (175_000, 0.005),
    "gpt3-125m": (125, 0.01),
    "gpt3-350m": (350, 0.02),
    "gpt3-760m": (760, 0.01),
    "gpt3-1.3b": (1_300, 0.02),
    "gpt3-2.7b": (2_700, 0.02),
    "gpt3-6.7b": (6_700, 0.01),
    "gpt3-13b": (13_000, 0.02),
    "clm-60m": (82.1, 0.001),
    "clm-200m": (261.9, 0.001),
    "clm-400m": (455.7, 0.001),
    "clm-1.1b": (1_145.1, 0.001),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_number_as_published(name: str) -> None:
    assert parameter_count(PRESETS[name].spec()) == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_number_about_as_published(name: str) -> None:
    millions, tolerance = ROUNDED[name]
    assert parameter_count(PRESETS[name].spec()) / 1e6 == pytest.approx(millions, rel=tolerance)


def test_bloomz_is_bloom_of_the_same_size() -> None:
    for size in ("560m", "1b1", "1b7", "3b", "7b1", "176b"):
        assert parameter_count(PRESETS[f"bloomz-{size}"].spec()) == parameter_count(PRESETS[f"bloom-{size}"].spec())


def test_the_shapes_of_gpt3() -> None:
    specs = [PRESETS[f"gpt3-{size}"].spec() for size in ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b")]
    assert [spec.heads for spec in specs] == [12, 16, 16, 32, 32, 32, 40]
    assert [spec.layers for spec in specs] == [12, 24, 24, 24, 32, 32, 40]
    assert [spec.hidden for spec in specs] == [768, 1024, 1536, 2048, 2560, 4096, 5120]
    assert specs[4].head_size == 80
    assert {spec.positions for spec in specs} == {LearnedPositions(2048)}


def test_wiring_of_a_few() -> None:
    assert (PRESETS["opt-350m"].spec().norm_placement, PRESETS["opt-350m"].spec().embedding) == ("post", 512)
    assert PRESETS["llama-3.1-8b"].spec().positions == Rotary(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert PRESETS["starcoderbase-1b"].spec().kv_heads == 1
    clm = [PRESETS[f"clm-{size}"].spec() for size in ("60m", "200m", "400m", "1.1b")]
    assert {(spec.head_size, spec.heads // spec.kv_heads, spec.tied_head) for spec in clm} == {(64, 3, False)}


@pytest.mark.parametrize(
    ("asked", "name", "hub_id"),
    [
        ("opt-1.3b", "opt-1.3b", "facebook/opt-1.3b"),
        ("OPT-1.3B", "opt-1.3b", "facebook/opt-1.3b"),
        ("facebook/opt-1.3b", "opt-1.3b", "facebook/opt-1.3b"),
        ("facebook/opt-175b", "opt-175b", None),
        ("bloom", "bloom-176b", "bigscience/bloom"),
        ("bloomz-7b1", "bloomz-7b1", "bigscience/bloomz-7b1"),
        ("bigscience/bloomz-7b1-mt", "bloomz-7b1", "bigscience/bloomz-7b1-mt"),
        ("bloomz-7b1-mt", "bloomz-7b1", "bigscience/bloomz-7b1-mt"),
        ("AICrossSim/clm-1.1b", "clm-1.1b", "AICrossSim/clm-1.1b"),
        ("AlCrossSim/clm-1.1b", "clm-1.1b", "AICrossSim/clm-1.1b"),
        ("openai-community/gpt2", "gpt2", "openai-community/gpt2"),
        ("bert-base-uncased", "bert-base", "google-bert/bert-base-uncased"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", "meta-llama/Llama-2-7b-chat-hf"),
        ("gpt3-6.7b", "gpt3-6.7b", None),
    ],
)
def test_names_and_aliases(asked: str, name: str, hub_id: str | None) -> None:
    found = preset(asked)
    assert found is not None
    assert (found.name, found.hub_id) == (name, hub_id)
    assert found.config == PRESETS[name].config


def test_every_name_leads_to_its_own_preset() -> None:
    for name, known in PRESETS.items():
        assert preset(name) == known
        assert known.name == name
        if known.hub_id is not None:
            assert preset(known.hub_id) == known


def test_unknown_names() -> None:
    assert preset("opt-1.4b") is None
    assert preset("") is None
    assert close_names("opt-1.4b")[0] == "opt-1.3b"
    assert "bloomz-7b1" in close_names("bloomz7b1")
    assert close_names("qqqqqqqq") == []


def test_presets_are_known_without_torch() -> None:
    known = "from inferometer.model.presets import preset; preset('gpt2').spec()"
    program = f"import sys; {known}; print(sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
