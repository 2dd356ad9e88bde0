"""Decode steps at a context that was never computed: what is in the cache, what is timed, and what a record says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inferometer.bench.backends.hf import HFBackend
from inferometer.bench.backends.hf_compile import HFCompileBackend
from inferometer.bench.backends.native import NativeBackend
from inferometer.bench.backends.prompts import random_prompts
from inferometer.bench.backends.request import BenchRequest
from inferometer.bench.measurement.benchmark import benchmark
from inferometer.bench.records.case import Case
from inferometer.bench.records.record import Record
from inferometer.cli.main import main
from inferometer.engine.llm import LLM
from inferometer.errors import UserError
from inferometer.model.config import read_spec
from inferometer.model.description import describe
from inferometer.nn.load import open_source
from inferometer.schedule.sampling import SamplingParams
from tiny_models import CONFIGS, tiny_model


def run(model: Path, **changes: Any) -> list[Record]:
    values: dict[str, Any] = {
        "model": str(model), "weights": "dummy", "dtype": "float32", "device": "cpu", "batch_sizes": (1, 3), "decode_length": 4,
        "runs": 2, "warmups": 1, "decode_only": True, "contexts": (20, 50),
    }  # fmt: skip
    return benchmark(BenchRequest(**{**values, **changes}), lambda record: None)


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bloom", "opt", "gpt2", "gpt_bigcode"))]
)
def test_steps_alone_at_every_context(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HFCompileBackend, "compiler", "eager")
    records = run(tiny_model(tmp_path, family), backends=("native", "hf", "hf-compile"), batch_sizes=(3,))
    assert [(r.backend, r.sequence_length, r.status) for r in records] == [
        (backend, context, "ok") for context in (20, 50) for backend in ("native", "hf", "hf-compile")
    ], [r.evidence for r in records]
    for record in records:
        assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record
        assert (record.prefill_ms, record.total_ms, record.steps) == (None, None, 4)
        assert record.decode_token_ms is not None
        assert record.throughput.decode_tok_s is not None
        assert record.checked is not None
        assert record.checked.passed
        assert record.predicted is not None
        assert (record.predicted.prefill_ms, record.predicted.j_per_token) == (None, None)
        assert record.predicted.decode_token_ms
    # The tokens 20 to 23 of a context: two pages a row, the second from token 17 on.
    assert [r.pages_peak for r in records if r.backend == "native"] == [3 * 2, 3 * 4]


def test_pages_are_found_and_not_computed(tmp_path: Path) -> None:
    """Rows that begin alike have pages of their own, and a run leaves nothing that the next could find in their place."""
    llm = LLM(str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="float32", device="cpu")
    backend = NativeBackend(llm)
    backend.prepare(4, 50 + 3)
    prompts = [[7] * 49] * 2 + random_prompts(0, 2, 49, 300)
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    seen = []
    for _ in range(3):
        backend.fill(prompts, params)
        engine = backend._running
        assert backend._batch is not None
        rows = backend._batch.sequences
        assert engine.scheduler.hit_tokens == 4 * 48 * (len(seen) + 1)
        assert len({page for row in rows for page in row.pages}) == sum(len(row.pages) for row in rows)
        assert [row.computed for row in rows] == [49] * 4
        for _ in range(3):
            backend.decode()
        seen.append([list(row) for row in backend.finish()])
    assert [len(row) for row in seen[0]] == [4] * 4
    assert engine.cache.keys[:, : 16 * 3].std() == pytest.approx(1, abs=0.1)
    # An ordinary batch runs on the same pages afterwards, as if nothing had been there.
    plain = NativeBackend(llm)
    plain.prepare(2, 12)
    plain.generate([[1, 2, 3], [4, 5, 6]], params)
    expected = plain.finish()
    backend.prepare(2, 12)
    backend.generate([[1, 2, 3], [4, 5, 6]], params)
    assert backend.finish() == expected
    backend.close()


@pytest.mark.parametrize("kind", [HFBackend, HFCompileBackend])
def test_the_cache_of_transformers_is_as_full_as_asked(tmp_path: Path, kind: type[HFBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HFCompileBackend, "compiler", "eager")
    description = describe(str(tiny_model(tmp_path, "llama")), config_only=True)
    source = open_source(description, weights="dummy")
    backend = kind(description.config, description.spec, source, torch.device("cpu"), torch.float32)
    backend.prepare(2, 33)
    backend.fill(random_prompts(0, 2, 29, 300), SamplingParams(max_new_tokens=4, ignore_eos=True))
    assert backend._batch is not None
    cache = backend._batch.cache
    assert int(cache.get_seq_length()) == 29
    assert cache.layers[1].keys[:, :, :28].std() == pytest.approx(1, abs=0.1)
    backend.decode()
    assert int(cache.get_seq_length()) == 30
    assert [len(row) for row in backend.finish()] == [2, 2]


def test_a_step_attends_over_what_fills_the_cache(tmp_path: Path) -> None:
    """The same token after another context is another score."""
    llm = LLM(str(tiny_model(tmp_path, "llama")), weights="dummy", dtype="float32", device="cpu")
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    backend = NativeBackend(llm)
    found = []
    for scale in (1.0, 3.0):
        backend.prepare(1, 50)
        backend._finding.cache.values.mul_(scale)
        backend.fill([[5] * 49], params)
        backend.decode()
        found.append(backend._end()[0][1][1])
        backend.abandon()
    assert found[0] != found[1]


def case(**changes: Any) -> Case:
    values: dict[str, Any] = {"model": "m", "backend": "native", "dtype": "float32", "device": None, "batch_size": 1}
    return Case(**{**values, "sequence_length": 20, "decode_length": 4, "decode_only": True, **changes})


def test_a_case_counts_all_its_steps() -> None:
    asked = case()
    assert (asked.steps, asked.prompt_length, asked.row_tokens, asked.sampling_params().max_new_tokens) == (4, 19, 24, 5)
    plain = replace(asked, decode_only=False)
    assert (plain.steps, plain.prompt_length, plain.row_tokens, plain.sampling_params().max_new_tokens) == (3, 20, 24, 4)
    assert plain.case_id != asked.case_id
    with pytest.raises(ValueError, match="at least 2"):
        case(sequence_length=1)


def test_a_record_with_steps_alone_has_their_times_and_no_others(tmp_path: Path) -> None:
    (record,) = run(tiny_model(tmp_path, "llama"), batch_sizes=(1,), contexts=(20,))
    for changes in ({"prefill_ms": record.decode_token_ms}, {"decode_token_ms": None}, {"decode_total_ms": record.decode_token_ms}):
        with pytest.raises(ValueError, match=r"without a prefill|is not 4 steps"):
            replace(record, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": (1,)}, "--decode-at must be at least 2"),
        ({"forward_only": True}, "--forward-only means nothing to --decode-at"),
        ({"admission": "row"}, "--admission means nothing to --decode-at"),
        ({"decode_only": False}, "contexts are of decode steps alone"),
        ({"backends": ("http",), "url": "http://h"}, "--decode-at fills a cache, which --backend http has no way to"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        BenchRequest(**{"model": None, "batch_sizes": (1,), "decode_only": True, "contexts": (9,), **changes}).check()


def test_the_longest_context_must_fit_the_model() -> None:
    asked = BenchRequest(model=None, batch_sizes=(1,), decode_only=True, contexts=(8, 60), decode_length=8)
    with pytest.raises(UserError, match="--decode-at 60 and --decode-length 8 make 68 tokens, but tiny has 64 positions"):
        asked.check_model(read_spec(CONFIGS["llama"], "tiny"))
    with pytest.raises(UserError, match="--decode-at needs a decoder"):
        asked.check_model(read_spec(CONFIGS["bert"], "tiny"))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bench", str(tiny_model(tmp_path, "llama")), "--weights", "dummy", "--dtype", "fp32", "--device", "cpu", "--runs", "2"]
    given += ["--batch-size", "2", "--decode-at", "20", "--decode-at", "40", "--decode-length", "3"]
    assert main(given) == 0
    out = capsys.readouterr().out
    assert "| Step           | Batch Size at Context | Average" in out
    assert "|                | 2 at 40 " in out
    assert "Prefill" not in out
    assert main([*given, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [(r["sequence_length"], r["decode_only"], r["decode_length"]) for r in records] == [(20, True, 3), (40, True, 3)]
