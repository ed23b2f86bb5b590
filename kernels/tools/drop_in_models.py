"""Train models of transformers with our attention and with their own: losses, gradients and time a step.

    python -m kernels.tools.drop_in_models [--device cuda] [--steps 8] [--tiny] [NAME ...]

Weights are random, of shapes of published configurations with fewer layers, in bfloat16. Gradients of the first step
are compared with those of the model in float32 under its own attention: the error of a tensor is the norm of the
difference over the norm. "Own" is PyTorch's attention, or transformers' eager one where that lacks what the model asks.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..transformers import register

Inputs = dict[str, torch.Tensor]
_LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Subject:
    """A model of transformers, and a batch for it."""

    config: str  # class of the configuration, and of the model
    model: str
    sizes: Mapping[str, Any]
    tiny: Mapping[str, Any]  # sizes instead, for a machine without a GPU
    inputs: Callable[[Any, bool, str], Inputs]  # of the configuration, whether it is tiny, and the device
    own: str = "sdpa"

    def build(self, tiny: bool, device: str) -> nn.Module:
        """Return the model in float32 with random weights."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**{**self.sizes, **(self.tiny if tiny else {})})
        with torch.device(device):
            return getattr(transformers, self.model)(config).train()


def _text(batch: int, seqlen: int, padded: bool = False) -> Callable[[Any, bool, str], Inputs]:
    """Make token ids, of which padding on the right is not among the labels."""

    def inputs(config: Any, tiny: bool, device: str) -> Inputs:
        size = (2, 12) if tiny else (batch, seqlen)
        ids = torch.randint(0, config.vocab_size, size, generator=torch.Generator().manual_seed(1))
        if not padded:
            return {name: ids.to(device) for name in ("input_ids", "labels")}
        lengths = torch.linspace(size[1] // 4, size[1], size[0]).long()
        real = torch.arange(size[1]) < lengths[:, None]
        found = {"input_ids": ids, "labels": ids.where(real, -100), "attention_mask": real.long()}
        return {name: x.to(device) for name, x in found.items()}

    return inputs


def _image(config: Any, tiny: bool, device: str) -> Inputs:
    shape = (2 if tiny else 16, 3, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)}


def _speech(config: Any, tiny: bool, device: str) -> Inputs:
    batch, frames = 2 if tiny else 4, 2 * config.max_source_positions
    sound = torch.randn(batch, config.num_mel_bins, frames, generator=torch.Generator().manual_seed(1))
    return {"input_features": sound.to(device), "labels": _text(4, 256)(config, tiny, device)["labels"]}


_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
_TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_TINY_TEXT = _TINY | {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50, "sliding_window": 5}
_TINY_TEXT |= {"query_pre_attn_scalar": 8}
_TINY_IMAGE = _TINY | {"image_size": 32, "patch_size": 8}
_TINY_SPEECH = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
_TINY_SPEECH |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8, "vocab_size": 50}
_TINY_SPEECH |= {"max_source_positions": 15, "max_target_positions": 16, "decoder_start_token_id": 1}
_TINY_SPEECH |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Llama 3.2 1B, https://huggingface.co/meta-llama/Llama-3.2-1B
_LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32}
_LLAMA |= {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000, **_NO_TOKENS}
# Gemma 2 2B, https://huggingface.co/google/gemma-2-2b
_GEMMA = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 4, "num_attention_heads": 8}
_GEMMA |= {"num_key_value_heads": 4, "head_dim": 256, "vocab_size": 32000, "sliding_window": 1024, **_NO_TOKENS}
# SigLIP so400m, https://huggingface.co/google/siglip-so400m-patch14-384
_SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 4, "num_attention_heads": 16}
_SIGLIP |= {"image_size": 384, "patch_size": 14}
# Whisper large v3, https://huggingface.co/openai/whisper-large-v3
_WHISPER = {"d_model": 1280, "encoder_layers": 3, "decoder_layers": 3, "num_mel_bins": 128}
_WHISPER |= {"encoder_attention_heads": 20, "decoder_attention_heads": 20}
_WHISPER |= {"encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120}
_LLAMA_CLASSES, _GEMMA_CLASSES = ("LlamaConfig", "LlamaForCausalLM"), ("Gemma2Config", "Gemma2ForCausalLM")
_WHISPER_CLASSES = ("WhisperConfig", "WhisperForConditionalGeneration")
SUBJECTS = {
    "llama": Subject(*_LLAMA_CLASSES, _LLAMA, _TINY_TEXT, _text(4, 2048)),
    "llama_padded": Subject(*_LLAMA_CLASSES, _LLAMA, _TINY_TEXT, _text(8, 2048, padded=True)),
    "gemma2": Subject(*_GEMMA_CLASSES, _GEMMA, _TINY_TEXT, _text(2, 2048), own="eager"),
    "siglip": Subject("SiglipVisionConfig", "SiglipVisionModel", _SIGLIP, _TINY_IMAGE, _image),
    "whisper": Subject(*_WHISPER_CLASSES, _WHISPER, _TINY_SPEECH, _speech),
}


@dataclass(frozen=True)
class Trained:
    """What a model does with one attention."""

    losses: list[float]  # a step
    ms: float  # a step, the median of the later half
    gradient_error: float  # of the first step, the largest of a tensor


def loss_of(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Return the model's loss, or how far its last hidden state is from made-up numbers."""
    out = model(**inputs)
    if getattr(out, "loss", None) is not None:
        return out.loss.float()
    found = out.last_hidden_state.float()
    wanted = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).to(found.device)
    return functional.mse_loss(found, wanted)


def gradients(model: nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return every parameter's gradient of one step, in float32."""
    wanted = {name: x for name, x in model.named_parameters() if x.requires_grad}
    found = torch.autograd.grad(loss_of(model, inputs), list(wanted.values()), allow_unused=True)
    return {name: x.float() for name, x in zip(wanted, found, strict=True) if x is not None}


def largest_error(found: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]) -> float:
    """Return the largest norm of a tensor's difference over its norm; of tensors with a gradient."""
    most = max(x.norm().item() for x in exact.values())
    large = {name: x for name, x in exact.items() if x.norm().item() > 1e-4 * most}
    return max(((found[name] - x).norm() / x.norm()).item() for name, x in large.items())


def train(model: nn.Module, inputs: Inputs, exact: Mapping[str, torch.Tensor], steps: int) -> Trained:
    """Train a copy of a model in bfloat16 for some steps of AdamW."""
    model = copy.deepcopy(model).to(torch.bfloat16)
    inputs = {name: x.to(torch.bfloat16) if x.is_floating_point() else x for name, x in inputs.items()}
    error = largest_error(gradients(model, inputs), exact)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, foreach=True)
    losses, times = [], []
    for _ in range(steps):
        begun = time.perf_counter()
        loss = loss_of(model, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the step
        times.append((time.perf_counter() - begun) * 1e3)
    return Trained(losses, statistics.median(times[steps // 2 :]), error)


def compare(name: str, attention: str, steps: int, tiny: bool, device: str) -> dict[str, Trained]:
    """Return what a subject does with its own attention and with ours."""
    subject = SUBJECTS[name]
    model = subject.build(tiny, device)
    inputs = subject.inputs(model.config, tiny, device)
    model.set_attn_implementation(subject.own)
    exact = gradients(model, inputs)
    found = {}
    for each in (subject.own, attention):
        model.set_attn_implementation(each)
        found[each] = train(model, inputs, exact, steps)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print two lines a model."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.drop_in_models")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SUBJECTS)}; all if none is named")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--attention", default="attnbench", help="a name of kernels.transformers.register")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a machine without a GPU")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(SUBJECTS):
        parser.error(f"unknown {', '.join(sorted(unknown))}; possible: {', '.join(SUBJECTS)}")
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("No CUDA device here. --device cpu --tiny trains small models on the CPU.")
    register()
    for name in chosen.names or SUBJECTS:
        for attention, x in compare(name, chosen.attention, chosen.steps, chosen.tiny, chosen.device).items():
            losses = f"losses {x.losses[0]:.5f} to {x.losses[-1]:.5f}"
            print(
                f"{name:12} {attention:10} {losses}  gradients {x.gradient_error:.2e}  {x.ms:8.2f} ms a step",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
