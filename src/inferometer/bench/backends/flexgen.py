"""The flexgen backend: the published package with everything on the GPU, its own loop, and our weights in its folder of arrays.

OPT alone, in float16. Its command line fetches a tokenizer even for dummy weights; its model is called here without one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from inferometer.bench.backends.backend import Continuation, PageUse, Prompts
from inferometer.bench.backends.opening import Opening
from inferometer.bench.backends.step_gate import StepGate
from inferometer.engine.device import synchronise
from inferometer.errors import UserError
from inferometer.model.families import family
from inferometer.model.scratch import scratch_beside
from inferometer.model.spec import ModelSpec
from inferometer.nn.export import hf_state
from inferometer.nn.source import CheckpointSource
from inferometer.schedule.groups import Zigzag
from inferometer.schedule.sampling import SamplingParams


def open_backend(opening: Opening) -> FlexGenBackend:
    """The weights go through a temporary folder, as the package reads them; groups are those of --admission zigzag."""
    order = opening.request.order()
    group = order.group_size if isinstance(order, Zigzag) else None
    # A whole model: what a process that was killed has left of one would fill the disk.
    with opening.source() as (source, spec), scratch_beside(Path(tempfile.gettempdir()) / "inferometer-flexgen") as folder:
        check_model(spec)
        write_arrays(source, spec, folder / f"{spec.name}-np", opening.device)
        return FlexGenBackend(spec, str(folder), opening.device, group)


def check_model(spec: ModelSpec) -> None:
    """Raises UserError for an OPT that the package's layers are not: 350M norms behind its maps, and projects its embeddings."""
    plain = spec.norm_affine and spec.qkv_bias and spec.tied_head and spec.final_norm and spec.activation == "relu"
    if not plain or spec.feed_forward != 4 * spec.hidden or spec.embedding != spec.hidden or spec.norm_placement != "pre":
        raise UserError(f"--backend flexgen runs OPT with norms before the maps and no projected embedding, which {spec.name} is not")


def write_arrays(source: CheckpointSource, spec: ModelSpec, folder: Path, device: torch.device) -> None:
    """Every tensor as a float16 array in a file of its name, without an ending: the package's format.

    They are read to `device`, as random ones are others on another kind of device.
    """
    folder.mkdir(parents=True)
    for name, tensor in hf_state(source, spec, family(spec.family), device=device, dtype=torch.float16):
        # The norm behind the last layer has another name there, as in the checkpoints of its time.
        told = name.removeprefix("model.").replace("decoder.final_layer_norm", "decoder.layer_norm")
        with (folder / told).open("wb") as file:
            np.save(file, tensor.cpu().numpy())


class FlexGenBackend:
    """group: sequences of a GPU batch; None for a batch of all rows. All groups of a batch are one block of its zigzag schedule."""

    name = "flexgen"
    phased = True
    encoder = False

    def __init__(self, spec: ModelSpec, folder: str, device: torch.device, group: int | None) -> None:
        self.device = device
        self.output_width = spec.vocabulary
        self.stack_version = metadata.version("flexgen")
        self._package: Any = import_module("flexgen.flex_opt")
        self._timers: Any = self._package.timers
        setattr(self._package, "timers", self._timer)  # noqa: B010  (a module, whose names a type checker does not know)
        self._gate: StepGate | None = None
        self._spec = spec
        self._group = group
        backend: Any = import_module("flexgen.pytorch_backend")
        gpu, cpu = backend.TorchDevice(str(device)), backend.TorchDevice("cpu")
        # Its copy threads would pin eight GiB of host memory for copies that nothing here needs.
        disk = backend.TorchDisk(folder, num_copy_threads=0)
        mixed = backend.TorchMixedDevice([gpu, cpu, disk])
        self._environment = self._package.ExecutionEnv(gpu=gpu, cpu=cpu, disk=disk, mixed=mixed)
        self._compute = gpu
        self._folder = folder
        self._weights: Any = None
        self._model: Any = None
        self._sizes = (0, 0)
        self._prompt = 0
        self._model_of(1, 1)  # reads the weights, while their folder is there

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights, of which the head is a copy of the embedding."""
        return sum(int(tensor.data.nbytes) for layer in self._weights for tensor in _tensors(layer.val))

    def prepare(self, rows: int, tokens: int) -> None:
        """A model for that many groups, of the same weights; the caches are made with each batch, as the package does.

        Raises ValueError for rows that are not whole groups.
        """
        self.abandon()
        group = self._group or rows
        if rows % group:
            raise ValueError(f"FlexGen's batches are whole groups: {rows} rows are no multiple of {group}")
        self._model_of(group, rows // group)

    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        """Makes the caches and runs the prompts, group by group within each layer."""
        self._prompt = len(prompts[0])
        self._gate = gate = StepGate(lambda: self._generate(prompts, params.max_new_tokens))
        gate.begin()
        gate.step()

    def decode(self) -> None:
        """One more token for all groups. Raises RuntimeError without a prefill before it."""
        if self._gate is None:
            raise RuntimeError("decode needs a prefill before it")
        self._gate.step()

    def generate(self, prompts: Prompts, params: SamplingParams) -> None:
        """The prompts, then step by step."""
        self.prefill(prompts, params)
        for _ in range(params.max_new_tokens - 1):
            self.decode()

    def page_use(self) -> PageUse | None:
        """None: a cache is one piece a layer and group."""
        return None

    def finish(self) -> Sequence[Sequence[int]]:
        """The tokens of the batch, which ends; one that is not complete is dropped where it stands.

        Raises RuntimeError without a prefill before it.
        """
        if self._gate is None:
            raise RuntimeError("finish needs a prefill before it")
        tokens: list[list[int]] = self._model.output_ids[:, self._prompt :].tolist()
        self._gate.close()
        self._gate = None
        return [[token for token in row if token >= 0] for row in tokens]

    def abandon(self) -> None:
        """Ends the batch and drops its caches."""
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        if self._model is not None:
            self._model_of(*self._sizes, anew=True)

    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        """Not asked for, as the entry refuses it. Raises NotImplementedError."""
        raise NotImplementedError("the package generates, and has no forward alone")

    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        """float32 logits (rows, length or 1, vocabulary), from the hidden states that its head is given; a few rows at a time
        are one group.
        """
        with self._watched(last_only=last_only) as seen:
            self._run_apart(prompts, 1)
        return torch.cat(seen)

    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy, through its caches and in the groups that are timed."""
        if self._sizes[0] * self._sizes[1] != len(prompts):
            self.prepare(len(prompts), len(prompts[0]) + steps)
        with self._watched(last_only=True) as seen:
            self.generate(prompts, SamplingParams(max_new_tokens=steps, ignore_eos=True))
        tokens = self.finish()
        groups = self._sizes[1]
        rows = [torch.cat(seen[step * groups : (step + 1) * groups])[:, 0].log_softmax(1) for step in range(steps)]
        chosen = [scores.gather(1, torch.tensor(tokens, device=scores.device)[:, [step]]) for step, scores in enumerate(rows)]
        return Continuation(tuple(map(tuple, tokens)), tuple(map(tuple, torch.cat(chosen, 1).tolist())))

    def synchronise(self) -> None:
        """Waits for the device."""
        synchronise(self.device)

    def close(self) -> None:
        """Drops the model."""
        if self._gate is not None:
            self._gate.close()
        self._gate = self._model = self._weights = None
        setattr(self._package, "timers", self._timers)  # noqa: B010

    def _generate(self, prompts: Prompts, new_tokens: int) -> None:
        # It copies and waits on the current device, which is each thread's own. No token of a prompt is padding.
        with self._on_device():
            self._model.generate(np.array(prompts, dtype=np.int64), max_new_tokens=new_tokens)

    def _run_apart(self, prompts: Prompts, new_tokens: int) -> None:
        """With a model of one group, besides the one that batches were prepared for."""
        sizes = self._sizes
        self._model_of(len(prompts), 1)
        try:
            self._generate(prompts, new_tokens)
        finally:
            self._model_of(*sizes)

    def _model_of(self, group: int, groups: int, *, anew: bool = False) -> None:
        if self._model is not None and self._sizes == (group, groups) and not anew:
            return
        package, spec, weights = self._package, self._spec, self._weights
        base: Any = package.OptLM

        class SharedWeights(base):  # type: ignore[misc]
            """Takes weights that are there, and leaves them there when it goes."""

            def init_all_weights(self) -> None:
                if weights is None:
                    super().init_all_weights()
                else:
                    self.weight_home = weights

            def __del__(self) -> None:
                pass

        whole = package.CompressionConfig(num_bits=4, group_size=64, group_dim=0, symmetric=False)
        policy = package.Policy(
            group, groups, 100, 0, 100, 0, 100, 0,
            overlap=True, sep_layer=True, pin_weight=True, cpu_cache_compute=False, attn_sparsity=1.0,
            compress_weight=False, comp_weight_config=whole, compress_cache=False, comp_cache_config=whole,
        )  # fmt: skip
        config = package.OptConfig(
            name=spec.name, num_hidden_layers=spec.layers, max_seq_len=spec.context_limit, hidden_size=spec.hidden, n_head=spec.heads,
            input_dim=spec.hidden, ffn_embed_dim=4 * spec.hidden, vocab_size=spec.vocabulary, pad_token_id=-1,
        )  # fmt: skip
        with self._on_device():
            self._model = SharedWeights(config, self._environment, self._folder, policy)
        self._weights = self._model.weight_home
        self._sizes = (group, groups)

    def _timer(self, name: str) -> Any:
        """Its loop calls a timer before and after each token; that is where ours comes in. Its own refuse to start after a failed run."""
        gate = self._gate
        return gate if gate is not None and gate.runs_here else _Untimed

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @contextmanager
    def _watched(self, *, last_only: bool) -> Iterator[list[Tensor]]:
        """While it lasts, the float32 logits of every call of its head, from the hidden states that the head is given: at all positions of
        each call or at the last, without which those of a large batch would take more memory than the batch.
        """
        seen: list[Tensor] = []
        theirs = self._compute.opt_output_embed

        def watching(inputs: Any, norm: Any, bias: Any, head: Any, *rest: Any) -> Any:
            fed = inputs.data[:, -1:] if last_only else inputs.data
            hidden = functional.layer_norm(fed, fed.shape[-1:], norm.data, bias.data)
            seen.append(functional.linear(hidden, head.data).float())
            return theirs(inputs, norm, bias, head, *rest)

        self._compute.opt_output_embed = watching
        try:
            yield seen
        finally:
            self._compute.opt_output_embed = theirs


class _Untimed:
    """In place of a timer where nobody times."""

    @staticmethod
    def start() -> None:
        """Begins nothing."""

    @staticmethod
    def stop() -> None:
        """Ends nothing."""


def _tensors(held: Any) -> Iterator[Any]:
    for each in held:
        yield from _tensors(each.val) if hasattr(each, "val") else (each,)
