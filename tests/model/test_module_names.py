"""Lists of modules in config.json: what they hold, and that no list keeps its reader busy."""

from __future__ import annotations

import pytest

from inferometer.errors import ModelError
from inferometer.model.module_names import read_module_names

LAYER = "model.layers.3.mlp.experts.0.gate_proj"


@pytest.mark.parametrize(
    ("entry", "module", "held"),
    [
        ("lm_head", "lm_head", True),
        ("mlp.experts", LAYER, True),
        ("gate_proj", LAYER, True),
        ("model.layers.3", LAYER, True),
        ("model.layers.30", LAYER, False),
        ("gate", LAYER, False),
        ("*.experts.*", LAYER, True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", True),
        ("model.layers.*.self_attn", LAYER, False),
        ("layers.*", LAYER, True),
        ("*gate_proj*gate_proj", LAYER, False),
        ("re:.*lm_head", "lm_head", True),
        ("re:.*mlp.gate$", "model.layers.3.mlp.gate", True),
        ("re:.*mlp.gate$", LAYER, False),
        (r"re:model\.layers\.(0|1|2|3)\.(mlp|self_attn)\..*", LAYER, True),
        (r"re:model\.layers\.(0|1|2)\..*", LAYER, False),
        (r"re:model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj", LAYER, True),
        ("re:visual.*", LAYER, False),
    ],
)
def test_what_an_entry_holds(entry: str, module: str, held: bool) -> None:
    assert read_module_names([entry], "a", "ignore").hold(module) is held


def test_no_list_holds_nothing() -> None:
    assert not read_module_names(None, "a", "ignore")
    assert not read_module_names([], "a", "ignore").hold(LAYER)


@pytest.mark.parametrize(
    "entry",
    [
        "re:(a+)+$",
        "re:(.*)*x",
        "re:(?:m|o|d|e|l|.)*x",
        "re:" + ".*" * 12 + "x",
        "re:" + "(.|m)" * 30 + "x",
        "re:" + ".?" * 30 + "x",
        "re:(?x) ( . + ) + $",
        "re:(.{1,9}){1,9}x",
    ],
)
def test_an_expression_that_could_take_for_ever_is_refused(entry: str) -> None:
    with pytest.raises(ModelError, match=r"could take minutes to match.*list modules by name") as refused:
        read_module_names(["lm_head", entry], "a", "ignore")
    assert "\n" not in str(refused.value)


def test_an_escaped_bracket_does_not_end_a_comment() -> None:
    assert not read_module_names([r"re:(?#\)]*)lm_head"], "a", "ignore").hold(LAYER)
    assert read_module_names([r"re:(?#\)]*)lm_head"], "a", "ignore").hold("lm_head")


def test_many_wildcards_are_quick() -> None:
    names = read_module_names(["*".join("model" * 40) + "z"], "a", "ignore")
    assert not any(names.hold("model." * 200 + str(layer)) for layer in range(50))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("lm_head", "must be a list"),
        ({"lm_head": 1}, "must be a list"),
        (["lm_head", 3], "must be a list"),
        (["re:("], "no regular expression"),
        (["re:a{99999999999999}"], "no regular expression"),
    ],
)
def test_what_is_no_list_of_modules_is_refused(value: object, told: str) -> None:
    with pytest.raises(ModelError, match=rf"a: quantization_config: ignore .*{told}") as refused:
        read_module_names(value, "a", "ignore")
    assert "\n" not in str(refused.value)
