"""Every family and variant against the model that transformers builds from the same configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from stated_sizes import sizes_of

from inferometer.errors import ModelError
from inferometer.model.config import read_spec
from inferometer.model.families import FAMILIES, family, family_for
from inferometer.model.parameters import parameter_count, parameters
from inferometer.model.spec import Alibi, LearnedPositions, ModelSpec, Rotary

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BLOOM: dict[str, Any] = {"model_type": "bloom", "vocab_size": 61, "hidden_size": 24, "n_layer": 2, "n_head": 4}
OPT: dict[str, Any] = {
    "model_type": "opt", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
    "max_position_embeddings": 32,
}  # fmt: skip
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32}
BIGCODE: dict[str, Any] = {**GPT2, "model_type": "gpt_bigcode"}
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MISTRAL: dict[str, Any] = {**LLAMA, "model_type": "mistral"}
QWEN2: dict[str, Any] = {**LLAMA, "model_type": "qwen2"}
BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32,
}  # fmt: skip
PLAIN = {config["model_type"]: config for config in (BLOOM, OPT, GPT2, BIGCODE, LLAMA, MISTRAL, QWEN2, BERT)}

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bloom": (BLOOM, {}),
    "bloom-residual-after-norm": (BLOOM, {"apply_residual_connection_post_layernorm": True}),
    "bloom-six-heads": (BLOOM, {"n_head": 6}),
    "bloom-untied": (BLOOM, {"tie_word_embeddings": False}),
    "opt": (OPT, {}),
    "opt-350m": (OPT, {"do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    "opt-projection": (OPT, {"word_embed_proj_dim": 36}),
    "opt-projection-untied": (OPT, {"word_embed_proj_dim": 12, "tie_word_embeddings": False}),
    "opt-no-bias": (OPT, {"enable_bias": False}),
    "opt-plain-norms": (OPT, {"layer_norm_elementwise_affine": False}),
    "opt-no-final-norm": (OPT, {"_remove_final_layer_norm": True}),
    "opt-gelu": (OPT, {"activation_function": "gelu"}),
    "gpt2": (GPT2, {}),
    "gpt2-unscaled": (GPT2, {"scale_attn_weights": False}),
    "gpt2-inverse-layer": (GPT2, {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "gpt2-inner": (GPT2, {"n_inner": 50, "activation_function": "silu"}),
    "gpt2-untied": (GPT2, {"tie_word_embeddings": False}),
    "bigcode-multi-query": (BIGCODE, {}),
    "bigcode-multi-head": (BIGCODE, {"multi_query": False}),
    "bigcode-inner-untied": (BIGCODE, {"n_inner": 50, "tie_word_embeddings": False, "scale_attn_weights": False}),
    "llama": (LLAMA, {}),
    "llama-tied": (LLAMA, {"tie_word_embeddings": True}),
    "llama-biases": (LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "llama-all-kv-heads": (LLAMA, {"num_key_value_heads": None}),
    "llama-head-size": (LLAMA, {"head_dim": 10}),
    "llama-linear": (LLAMA, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}}),
    "llama-dynamic": (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 5e5}),
    "mistral": (MISTRAL, {}),
    "mistral-no-window": (MISTRAL, {"sliding_window": None, "head_dim": 8}),
    "qwen2": (QWEN2, {}),
    "qwen2-window": (QWEN2, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "bert": (BERT, {}),
    "bert-token-types": (BERT, {"type_vocab_size": 5, "hidden_act": "gelu_new"}),
}  # fmt: skip


def build(config: dict[str, Any]) -> Any:
    own = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        if config["model_type"] == "bert":
            return transformers.BertModel(own)
        return transformers.AutoModelForCausalLM.from_config(own)


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request: pytest.FixtureRequest) -> tuple[dict[str, Any], ModelSpec, Any]:
    base, changes = VARIANTS[request.param]
    config = {**base, **changes}
    return config, read_spec(config, "tiny"), build(config)


def test_the_pieces_are_the_tensors_of_the_transformers_model(variant: tuple[dict[str, Any], ModelSpec, Any]) -> None:
    _, spec, model = variant
    kind = family(spec.family)
    pieces = [piece for parts in kind.pieces(spec).values() for piece in parts]
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if not kind.ignored(name, spec)}
    assert len({piece.tensor for piece in pieces}) == len(pieces)
    assert {piece.tensor: piece.shape for piece in pieces} == theirs


def test_the_pieces_fill_every_parameter_exactly(variant: tuple[dict[str, Any], ModelSpec, Any]) -> None:
    _, spec, _ = variant
    pieces = family(spec.family).pieces(spec)
    assert set(pieces) == {parameter.name for parameter in parameters(spec)}
    for parameter in parameters(spec):
        shapes = [piece.shape[::-1] if piece.layout == "columns" else piece.shape for piece in pieces[parameter.name]]
        assert sum(shape[0] for shape in shapes) == parameter.shape[0]
        assert {shape[1:] for shape in shapes} == {parameter.shape[1:]}


def test_the_parameters_number_as_in_transformers(variant: tuple[dict[str, Any], ModelSpec, Any]) -> None:
    _, spec, model = variant
    assert parameter_count(spec) == sum(parameter.numel() for parameter in model.parameters())


def test_what_transformers_makes_of_the_configuration_reads_the_same(
    variant: tuple[dict[str, Any], ModelSpec, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _, spec, model = variant
    assert read_spec(model.config.to_dict(), "tiny") == spec
    folder = tmp_path_factory.mktemp("saved")
    model.config.save_pretrained(folder)
    assert read_spec(json.loads((folder / "config.json").read_text()), "tiny") == spec


@pytest.mark.parametrize("kind", [kind for entry in FAMILIES for kind in entry.model_types])
def test_a_configuration_of_sizes_alone_means_the_class_defaults(kind: str) -> None:
    defaults = transformers.AutoConfig.for_model(kind).to_dict()
    assert read_spec(sizes_of(kind, defaults), "bare") == read_spec(defaults, "bare")


# What else these files state changes no size. The numbers of parameters are those of the weights that lie beside them.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
    "bigscience/bloom-7b1": (
        {"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "vocab_size": 250880},
        7_069_016_064,
    ),
    "the first llama": (
        {
            "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_sequence_length": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-06, "vocab_size": 32000,
        },
        6_738_415_616,
    ),
    "mistralai/Mistral-7B-v0.1": (
        {
            "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    "facebook/opt-125m": (
        {
            "model_type": "opt", "ffn_dim": 3072, "hidden_size": 768, "max_position_embeddings": 2048, "num_attention_heads": 12,
            "num_hidden_layers": 12, "vocab_size": 50272, "word_embed_proj_dim": 768,
        },
        125_239_296,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_that_leave_much_out_are_read(name: str) -> None:
    config, count = PUBLISHED[name]
    assert parameter_count(read_spec(config, name)) == count


@pytest.mark.parametrize(
    ("config", "old"),
    [
        (BLOOM, {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
        (GPT2, {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}),
        (BIGCODE, {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings"}),
    ],
)  # fmt: skip
def test_both_spellings_of_an_option_are_read(config: dict[str, Any], old: dict[str, str]) -> None:
    respelled = {old.get(option, option): value for option, value in config.items()}
    assert read_spec(respelled, "tiny") == read_spec(config, "tiny") == read_spec(build(respelled).config.to_dict(), "tiny")


def test_where_both_spellings_stand_the_one_that_transformers_takes_counts() -> None:
    both = {**BLOOM, "n_embed": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
    theirs = build(both).config
    spec = read_spec(both, "both")
    assert (spec.hidden, spec.heads, spec.layers) == (theirs.hidden_size, theirs.n_head, theirs.n_layer) == (48, 6, 3)


def test_wiring_of_each_family() -> None:
    opt = read_spec({**OPT, "do_layer_norm_before": False}, "opt")
    assert (opt.norm_placement, opt.final_norm, opt.positions) == ("post", False, LearnedPositions(32, offset=2))
    bloom = read_spec(BLOOM, "bloom")
    assert (bloom.positions, bloom.embedding_norm, bloom.feed_forward, bloom.context_limit) == (Alibi(), True, 96, None)
    gpt2 = read_spec({**GPT2, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, "gpt2")
    assert [gpt2.scale(layer) for layer in range(2)] == [1.0, 0.5]
    bert = read_spec(BERT, "bert")
    assert (bert.encoder, bert.pooler, bert.norm_placement, bert.embedding_norm, bert.final_norm) == (True, True, "post", True, False)
    llama = read_spec(LLAMA, "llama")
    assert (llama.positions, llama.gated, llama.norm, llama.kv_heads, llama.context_limit) == (Rotary(10_000.0), True, "rms", 2, 64)


def test_context_limits() -> None:
    assert read_spec(OPT, "opt").context_limit == 32
    assert read_spec(GPT2, "gpt2").context_limit == 32
    assert read_spec(BERT, "bert").context_limit == 32
    assert read_spec(BLOOM, "bloom").context_limit is None


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (MISTRAL, 4096),
        ({**MISTRAL, "sliding_window": 16}, 16),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**LLAMA, "sliding_window": 16}, 16),
        (LLAMA, None),
        (QWEN2, None),
        ({**QWEN2, "sliding_window": 16}, None),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 16}, None),  # the first 28 layers see everything
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, 16),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 16, "layer_types": ["full_attention"] * 2}, None),
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}, 16),
    ],
)
def test_sliding_windows(config: dict[str, Any], window: int | None) -> None:
    assert read_spec(config, "tiny").sliding_window == window


ACTIVATIONS: dict[str, Any] = {
    "relu": torch.relu,
    "relu_squared": lambda x: torch.relu(x) ** 2,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": torch.nn.functional.mish,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "identity": lambda x: x,
}
NOT_RUN = {"gelu_10", "hardswish", "laplace", "relu6", "sqrtsoftplus", "prelu", "xielu"}


@pytest.mark.parametrize("name", sorted(set(transformers.activations.ACT2CLS) - NOT_RUN))
def test_an_activation_is_the_function_that_transformers_means(name: str) -> None:
    activation = read_spec({**GPT2, "activation_function": name}, "tiny").activation
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[activation](x), transformers.activations.ACT2FN[name](x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_other_activations_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"activation_function = '{name}'"):
        read_spec({**GPT2, "activation_function": name}, "tiny")


def test_bloom_s_exact_sum_over_slices_is_refused_where_it_leaves_out_biases() -> None:
    bloom = {**BLOOM, "slow_but_exact": True}
    assert read_spec(bloom, "tiny") == read_spec({**bloom, "slow_but_exact": False, "pretraining_tp": 4}, "tiny")
    with pytest.raises(ModelError, match="slow_but_exact = True is not supported: with pretraining_tp above 1 it leaves out biases"):
        read_spec({**bloom, "pretraining_tp": 2}, "tiny")


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        ("gpt2", "transformer.h.1.attn.bias", {}),
        ("gpt2", "h.1.attn.masked_bias", {}),
        ("gpt2", "lm_head.weight", {}),
        ("gpt_bigcode", "transformer.h.0.attn.masked_bias", {}),
        ("gpt_bigcode", "transformer.bias", {}),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", {}),
        ("llama", "lm_head.weight", {"tied_head": True}),
        ("bloom", "lm_head.weight", {}),
        ("opt", "lm_head.weight", {}),
        ("opt", "decoder.version", {}),
        ("bert", "bert.embeddings.position_ids", {}),
        ("bert", "embeddings.position_ids", {}),
        ("bert", "cls.predictions.decoder.weight", {}),
        ("bert", "bert.pooler.dense.weight", {"pooler": False}),
    ],
)
def test_tensors_that_carry_nothing_are_ignored(kind: str, name: str, changes: dict[str, Any]) -> None:
    entry = family(kind)
    assert entry.ignored(name, replace(read_spec(PLAIN[kind], kind), **changes))


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn.bias", {}),
        ("gpt2", "lm_head.weight", {"tied_head": False}),
        ("gpt_bigcode", "transformer.ln_f.bias", {}),
        ("bloom", "transformer.h.0.self_attention.query_key_value.bias", {}),
        ("bert", "pooler.dense.weight", {}),
        ("bert", "classifier.weight", {}),
        ("llama", "score.weight", {}),
        ("llama", "lm_head.weight", {}),
    ],
)
def test_other_tensors_are_not_ignored(kind: str, name: str, changes: dict[str, Any]) -> None:
    entry = family(kind)
    assert not entry.ignored(name, replace(read_spec(PLAIN[kind], kind), **changes))


def test_names_of_the_first_bert_checkpoints_are_translated() -> None:
    bert = family("bert")
    assert bert.rename("bert.encoder.layer.0.output.LayerNorm.gamma") == "bert.encoder.layer.0.output.LayerNorm.weight"
    assert bert.rename("embeddings.LayerNorm.beta") == "embeddings.LayerNorm.bias"
    for entry in FAMILIES:
        names = [piece.tensor for parts in entry.pieces(read_spec(PLAIN[entry.name], "x")).values() for piece in parts]
        assert [entry.rename(name) for name in names] == names


def test_a_bert_checkpoint_without_pooler_is_read_as_such() -> None:
    spec = read_spec({**BERT, "architectures": ["BertForMaskedLM"]}, "masked")
    model = transformers.BertForMaskedLM(transformers.AutoConfig.for_model(**BERT))
    bert = family("bert")
    adapted = bert.adapt(spec, model.state_dict())
    wanted = {name.removeprefix("bert.") for name in model.state_dict() if not bert.ignored(name, adapted)}
    assert not adapted.pooler
    assert {piece.tensor for parts in bert.pieces(adapted).values() for piece in parts} == wanted
    assert bert.adapt(spec, ["bert.pooler.dense.weight"]) == spec
    llama = read_spec(LLAMA, "llama")
    assert family("llama").adapt(llama, []) == llama


def test_families_are_found_by_type_and_by_name() -> None:
    assert family_for("qwen2") is family_for({"model_type": "mistral"}) is family("llama")
    assert [family(entry.name) for entry in FAMILIES] == list(FAMILIES)
