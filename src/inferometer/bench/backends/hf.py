"""The hf backend: transformers' own modules and cache in a plain loop, filled with the weights that native runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
import transformers
from torch import Tensor

from inferometer.bench.backends.backend import Continuation, PageUse, Prompts
from inferometer.bench.backends.hf_batch import Batch
from inferometer.bench.backends.llm_int8 import quantize_int8
from inferometer.bench.backends.opening import Opening
from inferometer.model.families import family
from inferometer.model.spec import ModelSpec
from inferometer.nn.batch import flat_tokens
from inferometer.nn.export import fill_hf
from inferometer.nn.source import CheckpointSource
from inferometer.schedule.sampling import SamplingParams

MODERN: Final = int(transformers.__version__.partition(".")[0]) >= 5
"""Whether transformers is of the versions that backends of its own need; DeepSpeed's kernels want one before them."""


def open_backend(opening: Opening) -> HFBackend:
    """A transformers model of the same weights that the native engine has."""
    with opening.source() as (source, spec):
        return HFBackend(opening.description.config, spec, source, opening.device, opening.dtype, quantize=opening.request.quantize)


class HFBackend:
    """A transformers model on one device, with sdpa attention where transformers has it for the family, else eager.

    `config` is the model's Hugging Face configuration, `spec` what native makes of it and `source`, whose tensors fill the module.
    `quantize`: None, or any name for LLM.int8 of bitsandbytes.
    Raises ModelError where transformers and the checkpoint differ in their parameters.
    """

    name = "hf"
    phased = True

    def __init__(
        self,
        config: Mapping[str, Any],
        spec: ModelSpec,
        source: CheckpointSource,
        device: torch.device,
        dtype: torch.dtype,
        *,
        quantize: str | None = None,
    ) -> None:
        self.device = device
        self._dtype = dtype
        self.encoder = spec.encoder
        self.output_width = spec.hidden if spec.encoder else spec.vocabulary
        self._model = _build(config, spec, device, dtype)
        self.stack_version = f"{transformers.__version__} {self._model.config._attn_implementation}"
        fill_hf(self._model, source, spec, family(spec.family))
        # Eight bits of a row's largest number round as coarsely as bfloat16 does.
        self.coarsest = dtype if quantize is None else torch.bfloat16
        if quantize is not None:
            self.stack_version += f" {quantize_int8(self._model)}"
        # As from_pretrained leaves them. It matters though nothing is trained: torch folds a batch of one-token rows into one product
        # only for weights with gradients, and else copies the head's matrix once a row.
        for parameter in self._model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self._resident: int = sum(t.nbytes for t in {t.data_ptr(): t for t in self._model.state_dict().values()}.values())
        self._batch: Batch | None = None

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights."""
        return self._resident

    def prepare(self, rows: int, tokens: int) -> None:
        """Nothing: the cache grows as it is needed."""

    @torch.inference_mode()
    def prefill(self, prompts: Prompts, params: SamplingParams) -> None:
        """One forward with logits at the last position alone, and the first token."""
        self._batch = self._begin(self._ids(prompts), params)

    @torch.inference_mode()
    def fill(self, prompts: Prompts, params: SamplingParams) -> None:
        """A forward of the last token alone, which makes the cache, and random keys and values before it."""
        ids = self._ids([prompt[-1:] for prompt in prompts])
        self._batch = self._begin(ids, params)
        self._invent(self._batch, len(prompts[0]) - 1)

    @torch.inference_mode()
    def decode(self) -> None:
        """One token for every row, through the cache. Raises RuntimeError without a prefill before it."""
        if self._batch is None:
            raise RuntimeError("decode needs a prefill before it")
        self._batch.step()

    def generate(self, prompts: Prompts, params: SamplingParams) -> None:
        """The prompts, then step by step."""
        self.prefill(prompts, params)
        for _ in range(params.max_new_tokens - 1):
            self.decode()

    def hold(self, prompts: Prompts, params: SamplingParams, steps: int, *, filled: bool) -> None:
        """Stops after the middle step."""
        (self.fill if filled else self.prefill)(prompts, params)
        for _ in range((steps + 1) // 2):
            self.decode()

    @torch.inference_mode()
    def again(self) -> None:
        """Forgets the newest token, and feeds the one before it once more. Raises RuntimeError where no step has run."""
        if self._batch is None:
            raise RuntimeError("a step can be run again once it has run")
        self._back(self._batch)
        self._batch.step()

    def page_use(self) -> PageUse | None:
        """None: the cache is one piece a layer."""
        return None

    def finish(self) -> Sequence[Sequence[int]]:
        """The tokens of the batch, which ends. Raises RuntimeError without a prefill before it."""
        if self._batch is None:
            raise RuntimeError("finish needs a prefill before it")
        tokens: list[list[int]] = torch.cat(self._batch.tokens, 1).tolist()
        self._batch = None
        return tokens

    def abandon(self) -> None:
        """Drops the batch."""
        self._batch = None

    @torch.inference_mode()
    def forward(self, prompts: Prompts, *, loss: bool) -> float | None:
        """One forward; transformers computes the loss itself, from float32 logits."""
        ids = self._ids(prompts)
        if self.encoder:
            self._model(input_ids=ids)
            return None
        out = self._model(input_ids=ids, labels=ids if loss else None, use_cache=False)
        return float(out.loss) if loss else None

    @torch.inference_mode()
    def logits(self, prompts: Prompts, *, last_only: bool) -> Tensor:
        """float32 logits, or an encoder's hidden states and pooled output."""
        if self.encoder:
            out = self._model(input_ids=self._ids(prompts))
            states = out.last_hidden_state
            pooled = [out.pooler_output[:, None]] if out.pooler_output is not None else []
            return torch.cat([states, *pooled], 1).float()
        keep = {"logits_to_keep": int(last_only)} if MODERN else {}
        found: Tensor = self._model(input_ids=self._ids(prompts), use_cache=False, **keep).logits
        return found[:, -1:].float() if last_only else found.float()

    @torch.inference_mode()
    def continuation(self, prompts: Prompts, steps: int) -> Continuation:
        """Greedy, through the cache."""
        batch = self._begin(self._ids(prompts), SamplingParams(max_new_tokens=steps, ignore_eos=True))
        chosen = [batch.chosen()]
        for _ in range(steps - 1):
            batch.step()
            chosen.append(batch.chosen())
        tokens = torch.cat(batch.tokens, 1)
        return Continuation(tuple(map(tuple, tokens.tolist())), tuple(map(tuple, torch.cat(chosen, 1).tolist())))

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Widens the weights to float32 and narrows them again, which gives back the same bits."""
        # Parameters alone: tables of frequencies are buffers, and stay in the float32 that they were made in.
        parameters = [p for p in self._model.parameters() if p.dtype == self._dtype]
        try:
            for parameter in parameters:
                parameter.data = parameter.data.float()
            yield
        finally:
            for parameter in parameters:
                parameter.data = parameter.data.to(self._dtype)

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Drops the model."""
        self._batch = None
        self._model = None

    def _begin(self, ids: Tensor, params: SamplingParams) -> Batch:
        return Batch(self._model, ids, params, transformers.DynamicCache(config=self._model.config))

    def _back(self, batch: Batch) -> None:
        batch.unstep()
        batch.cache.crop(-1)

    def _invent(self, batch: Batch, tokens: int) -> None:
        """Puts so many random places before those that the batch's cache has."""
        for layer in batch.cache.layers:
            layer.keys, layer.values = (
                torch.cat((torch.randn(*old.shape[:2], tokens, old.shape[3], device=old.device, dtype=old.dtype), old), 2)
                for old in (layer.keys, layer.values)
            )

    def _ids(self, prompts: Prompts) -> Tensor:
        return flat_tokens(prompts).view(len(prompts), -1).to(self.device)


def _build(given: Mapping[str, Any], spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Any:
    transformers.logging.set_verbosity_error()  # its advice on configurations is not ours to pass on
    options = dict(given)
    kind = options.pop("model_type")
    # Loading is ours, so what the checkpoint was stored as, or needs foreign code for, plays no part.
    for name in ("quantization_config", "auto_map", "torch_dtype", "dtype", "architectures", "_attn_implementation"):
        options.pop(name, None)
    options["tie_word_embeddings"] = spec.tied_head  # a checkpoint may hold a head that its configuration calls tied
    config = transformers.AutoConfig.for_model(kind, **options)
    factory: Any = transformers.AutoModelForCausalLM
    extra: dict[str, Any] = {"dtype" if MODERN else "torch_dtype": dtype}
    if spec.encoder:
        factory, extra["add_pooling_layer"] = transformers.AutoModel, spec.pooler
    with torch.device(device), _uninitialised():
        try:
            model = factory.from_config(config, attn_implementation="sdpa", **extra)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            model = factory.from_config(config, attn_implementation="eager", **extra)
    model.tie_weights()  # left out together with the initialisation
    return model.eval().requires_grad_(False)


def _uninitialised() -> Any:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return nullcontext()
    return no_init_weights()
