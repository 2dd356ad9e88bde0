"""The parts of the flexgen package (0.1.8) that are called, over transformers' OPT: it reads the package's folder of arrays, runs groups
in the package's order, and calls timer and head where the package does. Nothing of the package's placement or overlap is here."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional


class Holder:
    def __init__(self, val: Any) -> None:
        self.val = val


class Held:
    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


class TorchDevice:
    def __init__(self, name: str) -> None:
        self.name = name

    def opt_output_embed(self, inputs: Held, norm: Held, bias: Held, head: Held, donate: list[bool], sample: bool, heat: float) -> Held:
        hidden = functional.layer_norm(inputs.data, inputs.data.shape[-1:], norm.data, bias.data)
        return Held(functional.linear(hidden, head.data)[:, -1].argmax(1, keepdim=True))


class TorchDisk:
    def __init__(self, path: str, num_copy_threads: int = 4) -> None:
        self.num_copy_threads = num_copy_threads


class TorchMixedDevice:
    def __init__(self, devices: list[Any]) -> None:
        self.devices = devices


@dataclass
class Environment:
    gpu: Any
    cpu: Any
    disk: Any
    mixed: Any


@dataclass
class Configuration:
    name: str
    num_hidden_layers: int
    max_seq_len: int
    hidden_size: int
    n_head: int
    input_dim: int
    ffn_embed_dim: int
    vocab_size: int
    pad_token_id: int


@dataclass
class Policy:
    gpu_batch_size: int
    num_gpu_batches: int
    w_gpu_percent: float
    w_cpu_percent: float
    cache_gpu_percent: float
    cache_cpu_percent: float
    act_gpu_percent: float
    act_cpu_percent: float
    overlap: bool
    sep_layer: bool
    pin_weight: bool
    cpu_cache_compute: bool
    attn_sparsity: float
    compress_weight: bool
    comp_weight_config: Any
    compress_cache: bool
    comp_cache_config: Any


@dataclass
class Timer:
    name: str
    started: bool = False

    def start(self) -> None:
        assert not self.started, f"timer {self.name} has already been started."
        self.started = True

    def stop(self) -> None:
        self.started = False


@dataclass
class Package:
    """The two modules, and the models that were made of them."""

    made: list[Any] = field(default_factory=list)

    def modules(self) -> dict[str, types.ModuleType]:
        package, flex_opt = types.ModuleType("flexgen"), types.ModuleType("flexgen.flex_opt")
        backend = types.ModuleType("flexgen.pytorch_backend")
        made = self.made

        class OptLM:
            def __init__(self, config: Configuration, env: Environment, path: str, policy: Policy) -> None:
                self.config, self.env, self.path, self.policy = config, env, path, policy
                self.init_all_weights()
                made.append(self)

            def init_all_weights(self) -> None:
                folder = Path(self.path) / f"{self.config.name}-np"
                arrays = {path.name: torch.from_numpy(np.load(path)) for path in sorted(folder.iterdir())}
                assert {array.dtype for array in arrays.values()} == {torch.float16}
                self.weight_home = [Holder([Held(array) for array in arrays.values()])]
                self.weight_home[0].names = list(arrays)  # type: ignore[attr-defined]

            def __del__(self) -> None:
                raise AssertionError("the package's own would drop the weights here")

            def generate(self, inputs: np.ndarray, max_new_tokens: int) -> np.ndarray:
                config, policy = self.config, self.policy
                assert policy.gpu_batch_size * policy.num_gpu_batches == len(inputs)
                home = self.weight_home[0]
                arrays = dict(zip(home.names, (held.data for held in home.val), strict=True))  # type: ignore[attr-defined]
                model = _model(config, arrays)
                length = inputs.shape[1]
                self.output_ids = np.full((len(inputs), length + max_new_tokens), config.pad_token_id, dtype=np.int32)
                self.output_ids[:, :length] = inputs
                norm, bias = (Held(arrays[f"decoder.layer_norm.{what}"].float()) for what in ("weight", "bias"))
                head = Held(arrays["decoder.embed_tokens.weight"].float())
                for step in range(max_new_tokens):
                    flex_opt.timers("generate").start()  # type: ignore[attr-defined]
                    for group in range(policy.num_gpu_batches):
                        rows = slice(group * policy.gpu_batch_size, (group + 1) * policy.gpu_batch_size)
                        hidden = _before_the_head(model, self.output_ids[rows, : length + step])
                        fed = hidden if step == 0 else hidden[:, -1:]
                        chosen = self.env.gpu.opt_output_embed(Held(fed), norm, bias, head, [False] * 4, False, 1.0)
                        self.output_ids[rows, length + step] = chosen.data[:, 0].numpy()
                    flex_opt.timers("generate").stop()  # type: ignore[attr-defined]
                return self.output_ids

        theirs: dict[str, Timer] = {}
        flex_opt.timers = lambda name: theirs.setdefault(name, Timer(name))  # type: ignore[attr-defined]
        for name, value in {"OptLM": OptLM, "Policy": Policy, "OptConfig": Configuration, "ExecutionEnv": Environment,
                            "CompressionConfig": lambda **kw: kw}.items():  # fmt: skip
            setattr(flex_opt, name, value)
        for kind in (TorchDevice, TorchDisk, TorchMixedDevice):
            setattr(backend, kind.__name__, kind)
        return {"flexgen": package, "flexgen.flex_opt": flex_opt, "flexgen.pytorch_backend": backend}


def _model(config: Configuration, arrays: dict[str, torch.Tensor]) -> Any:
    made = transformers.OPTForCausalLM(
        transformers.OPTConfig(
            hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers, num_attention_heads=config.n_head,
            ffn_dim=config.ffn_embed_dim, vocab_size=config.vocab_size, max_position_embeddings=config.max_seq_len,
            word_embed_proj_dim=config.input_dim,
        )
    ).eval()  # fmt: skip
    state = {f"model.{name.replace('decoder.layer_norm', 'decoder.final_layer_norm')}": array.float() for name, array in arrays.items()}
    missing, unexpected = made.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return made


@torch.inference_mode()
def _before_the_head(model: Any, ids: np.ndarray) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    hook = model.model.decoder.final_layer_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(input_ids=torch.from_numpy(ids.astype(np.int64)))
    hook.remove()
    return seen[0]
