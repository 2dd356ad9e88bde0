"""What the offline interface refuses, before anything is loaded or run where it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer import LLM, SamplingParams
from inferometer.engine.engine import Engine
from inferometer.engine.pooling import Pooling, resolve_pooling
from inferometer.errors import ModelError, UserError
from inferometer.schedule.request import Request
from inferometer.schedule.scheduler import RequestTooLargeError
from tiny_models import tiny_model


def test_the_engine_refuses_what_can_never_fit(llm: LLM) -> None:
    engine = Engine(llm.model, pages=2)
    with pytest.raises(RequestTooLargeError, match=r"need 3 pages of KV cache .* 2 are available"):
        engine.add(Request(0, (1,) * 31, SamplingParams(max_new_tokens=3), 0))
    assert not engine.has_work


def test_the_engine_refuses_more_tokens_than_the_model_has_positions(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestTooLargeError, match="96 tokens that a sequence"):
        llm.engine.add(Request(0, (1,) * 90, SamplingParams(max_new_tokens=8), 0))
    with LLM(tiny_model(tmp_path, "bloom"), dtype="float32", device="cpu", weights="dummy") as endless:
        assert len(endless.generate([[1] * 200], SamplingParams(max_new_tokens=3, ignore_eos=True))[0].token_ids) == 3
        with pytest.raises(RequestTooLargeError, match="1048576 tokens that a sequence"):
            endless.stream([[1], [2]], [SamplingParams(), SamplingParams(max_new_tokens=2**20 + 1)])
        assert not endless.engine.has_work


def test_damaged_weights_do_not_fill_the_hosts_memory(folder: Path) -> None:
    """Pages that were never written take none, and clearing them must not write to them."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with LLM(folder, dtype="float32", device="cpu", weights="dummy", gpu_memory=1.0) as broken:
        weight = broken.model.get_parameter("layers.1.feed_forward.down.weight")
        sound = weight.detach().clone()
        params = SamplingParams(max_new_tokens=4)
        expected = broken.generate([[1, 2, 3]], params)
        weight.data.fill_(float("nan"))
        before = resident()
        with pytest.raises(UserError, match="no token a finite score"):
            broken.generate([[1, 2]])
        assert resident() - before < 2**28
        weight.data.copy_(sound)
        assert broken.generate([[1, 2, 3]], params) == expected


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([[]], SamplingParams(), "no tokens"),
        ("", SamplingParams(), "no tokens"),
        ([[300]], SamplingParams(), "outside the vocabulary"),
        ([[-1]], SamplingParams(), "outside the vocabulary"),
        ([1, 2, 3], SamplingParams(), "wrap a single prompt"),
        (torch.tensor([1, 2, 3]), SamplingParams(), "wrap a single prompt"),
        (None, SamplingParams(), "prompts are texts or lists of token ids"),
        ([[1.5, 2]], SamplingParams(), "whole numbers"),
        ([[1, None]], SamplingParams(), "whole numbers"),
        ([["1"]], SamplingParams(), "whole numbers"),
        ([[1]], None, "params must be SamplingParams"),
        ([[1]], {"max_new_tokens": 2}, "params must be SamplingParams"),
        ([[1]], ["greedy"], "params must be SamplingParams"),
        ([[1] * 90], SamplingParams(max_new_tokens=7), "96 positions"),
        ([[1], [2]], [SamplingParams()], "2 prompts but 1"),
        ([[1]], SamplingParams(logit_bias={300: 1.0}), "300"),
        # Of which the model's own end token is one.
        ([[1]], SamplingParams(min_new_tokens=1, stop_token_ids=tuple(t for t in range(300) if t != 7)), "every token of the model"),
        ([[1]], SamplingParams(min_new_tokens=1, stop_token_ids=tuple(range(300)), ignore_eos=True), "every token of the model"),
    ],
)
def test_impossible_requests_are_refused_before_anything_runs(llm: LLM, prompts: object, params: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        llm.stream(prompts, params)  # type: ignore[arg-type]
    assert not llm.engine.has_work


def test_all_tokens_but_one_may_be_banned(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=3, min_new_tokens=2, stop_token_ids=tuple(range(1, 300)), ignore_eos=True)
    assert llm.generate([[1]], params)[0].token_ids[:2] == [0, 0]
    every = SamplingParams(max_new_tokens=3, stop_token_ids=tuple(range(300)))
    assert len(llm.generate([[1]], every)[0].token_ids) == 1


def test_a_bad_device_or_dtype_is_told_at_once(folder: Path) -> None:
    with pytest.raises(UserError, match="unknown"):
        LLM(folder, device="tpu", weights="dummy")
    with pytest.raises(UserError, match="unknown"):
        LLM(folder, dtype="float8", device="cpu", weights="dummy")
    with pytest.raises(UserError, match="memory"):
        _ = LLM(folder, device="cpu", weights="dummy", memory_fraction=0).engine


def test_a_model_larger_than_the_hosts_memory_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(UserError, match=r"bloom-176b in float32 need 656\.6 GiB, .* GiB of this machine's memory are free"):
        LLM("bloom-176b", weights="dummy", device="cpu", dtype="float32")


def test_an_encoder_is_refused_as_such_however_long_the_request(tmp_path: Path) -> None:
    with LLM(tiny_model(tmp_path, "bert"), weights="dummy", device="cpu") as encoder, pytest.raises(UserError, match="is an encoder"):
        encoder.generate("hi", SamplingParams(max_new_tokens=1000))


def test_scores_that_are_no_numbers_are_an_error_and_no_text(folder: Path) -> None:
    with LLM(folder, dtype="float32", device="cpu", weights="dummy") as broken:
        with torch.no_grad():
            broken.model.get_parameter("layers.1.feed_forward.down.weight").fill_(float("nan"))
        with pytest.raises(UserError, match="no token a finite score"):
            broken.generate([[1, 2]])
        broken.engine.clear()
        assert not broken.engine.has_work


def test_vectors_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    with LLM(tiny_model(tmp_path, "bert"), weights="dummy", device="cpu", dtype="float32") as broken:
        assert broken.encode([[1, 2], [3]]).shape == (2, 32)
        with torch.no_grad():
            broken.model.get_parameter("layers.1.feed_forward.down.weight")[0, 0] = float("nan")
        with pytest.raises(ModelError, match=r"^tiny-bert in float32 makes vectors that are not finite: its weights are damaged$"):
            broken.encode([[1, 2], [3]])


def test_a_pooling_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    with LLM(tiny_model(tmp_path, "bert"), weights="dummy", device="cpu", dtype="float32") as encoder:
        assert (encoder.encode([[1, 2]], pooling="mean") == encoder.encode([[1, 2]], pooling=Pooling("mean"))).all()
        wrong: Any
        for wrong in ("average", 5):
            with pytest.raises(
                UserError, match=f"pooling must be one of pooler, first, mean, max, mean_sqrt for this model, not {wrong!r}"
            ):
                encoder.encode([[1, 2]], pooling=wrong)
    with pytest.raises(UserError, match="pooling must be one of first, mean"):
        resolve_pooling("pooler", None, has_pooler=False)


WRONG = (
    *({"gpu_memory": value} for value in (-1.0, 0, float("nan"), float("inf"), "1", True)),
    *({"memory_fraction": value} for value in (0, -0.5, 1.01, float("nan"), None, "x", True)),
    *({"seed": value} for value in (-1, 2**64, "x", True)),
    *({name: value} for name in ("dtype", "kv_dtype", "weights", "admission") for value in (5, None)),
    *({name: 5} for name in ("revision", "quantize", "offload")),
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_setting_out_of_range_is_told_before_anything_is_loaded(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
        LLM(folder, **{"weights": "dummy", "device": "cpu", **wrong})


@pytest.mark.parametrize("wrong", [{"device": None}, {"percent": 5}, {"tokenizer": 5}, {"tokenizer": b"byte"}, {"tokenizer": ""}])
def test_a_value_of_another_type_is_the_users_mistake(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        LLM(folder, **{"weights": "dummy", "device": "cpu", **wrong})


def test_a_tokenizer_that_is_none_is_told_before_weights_are_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "_load", lambda *_: pytest.fail("reads the weights"))
    with pytest.raises(UserError, match="no tokenizer at "):
        LLM(folder, device="cpu", weights="dummy", tokenizer=tmp_path / "none")
    path = tiny_model(tmp_path, "llama")
    (path / "model.safetensors").write_bytes(b"")
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer\.json that can be read"):
        LLM(path, device="cpu")


def test_torchs_own_names_of_types_and_devices_serve(folder: Path) -> None:
    llm = LLM(folder, dtype=torch.float32, device=torch.device("cpu"), weights="dummy", gpu_memory=0.01)
    assert (llm.dtype, llm.device) == (torch.float32, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^--dtype int8 is unknown; use auto, float32, float16 or bfloat16$"):
        LLM(folder, dtype=torch.int8, device="cpu", weights="dummy")
