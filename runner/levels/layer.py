"""Level layer: projections around an attention, with the gradients of its input and of every weight.

All implementations of a case use the same weights: normal numbers from the seed, divided by the square root of their
fan-in, so that queries, keys and values are about standard normal, as at level op. Biases are normal. The gradient of
out is an input, and gradients are returned instead of accumulated in `.grad`.
"""

from dataclasses import dataclass

import torch

from kernels import layers, registry
from kernels.attention import torch_naive
from kernels.layer_reference import LayerReference
from kernels.registry import Attention, UnsupportedCase
from results.records import Case, layer_case
from runner.levels import Call, DifferentiableCalls, Pass, fill_normal, generator_of, measured

_SMALL_SEQLEN = 64


def passes(case: Case) -> tuple[Pass, ...]:
    """Return forward and backward; the tensors of the backward depend on the layer's weights."""
    weights = empty_inputs(case, "meta").weights
    return (
        Pass("fwd", "forward", ("fwd", "bwd", "fwd_bwd"), ("out",)),
        Pass("bwd", "backward", ("bwd", "fwd_bwd"), ("dx", *map(gradient_name, weights))),
    )


def gradient_name(weight: str) -> str:
    """Return the name of the gradient of a module's parameter: dw_qkv for qkv.weight, db_out for out.bias."""
    module, _, kind = weight.partition(".")
    return f"d{kind[0]}_{module}"


@dataclass(frozen=True)
class LayerInputs:
    """A layer with its weights, its input, and the gradient of its output."""

    case: Case
    layer: layers.AttentionLayer  # around torch_naive; its method `around` replaces the attention
    x: torch.Tensor  # (batch, seqlen, hidden)
    dout: torch.Tensor  # (batch, seqlen, hidden)

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.x.device

    @property
    def weights(self) -> dict[str, torch.nn.Parameter]:
        """Return the layer's parameters by name."""
        return dict(self.layer.named_parameters())

    def fill(self, seed: int) -> None:
        """Write the data of a seed into the tensors; a seed gives the same data on all devices of a type."""
        weights = self.weights.values()
        fill_normal((self.x, self.dout, *weights), generator_of(self.case, self.device, seed))
        with torch.no_grad():
            for weight in weights:
                if weight.dim() == 2:
                    weight.mul_(weight.shape[1] ** -0.5)

    def bytes_of(self, mode: str) -> int:
        """Return the bytes of the inputs of a call: weights, x and, with a backward, dout."""
        given = (self.x, *self.weights.values(), *([] if mode == "fwd" else [self.dout]))
        return sum(tensor.numel() * tensor.element_size() for tensor in given)

    def result_shapes(self) -> list[torch.Size]:
        """Return the shapes of out, twice, of dx and of the weights' gradients."""
        return [*[self.x.shape] * 3, *(weight.shape for weight in self.weights.values())]


def empty_inputs(case: Case, device: str) -> LayerInputs:
    """Return the tensors of a case, uninitialized. Raises UnsupportedCase for a window."""
    if case.window_size or case.seqlen_q != case.seqlen_k or case.head_dim_v != case.head_dim:
        raise UnsupportedCase("Layers are measured without a window, with one length and one head_dim.")
    shape = layers.LayerShape(
        case.num_heads, case.num_kv_heads, case.head_dim, case.latent_dim or 0, causal=bool(case.causal)
    )
    like = {"device": device, "dtype": getattr(torch, case.dtype)}
    layer = layers.build(case.subject, shape, torch_naive.attention, **like)
    x, dout = (torch.empty((case.batch, case.seqlen_q, shape.hidden), **like) for _ in range(2))
    return LayerInputs(case, layer, x.requires_grad_(), dout)


def forward(attention: Attention, inputs: LayerInputs) -> torch.Tensor:
    """Return out, with its autograd graph if gradients are enabled."""
    return inputs.layer.around(attention)(inputs.x)


def backward(inputs: LayerInputs, out: torch.Tensor, *, keep: bool = False) -> tuple[torch.Tensor, ...]:
    """Return dx and the gradient of every weight; `keep` retains the graph for another call."""
    return torch.autograd.grad(out, (inputs.x, *inputs.weights.values()), inputs.dout, retain_graph=keep)


_CALLS = DifferentiableCalls(forward, backward)
call, trial, kept_for_backward = _CALLS.call, _CALLS.trial, _CALLS.kept_for_backward


def inner_call(attention: Attention, inputs: LayerInputs, mode: str) -> Call:
    """Return the attention inside alone in a mode, on the views of q, k and v that the projections return."""
    layer, causal = inputs.layer, bool(inputs.case.causal)
    with torch.no_grad():
        projected = layer.project(inputs.x)
        dheads = (inputs.dout @ layer.out.weight).unflatten(2, (-1, layer.shape.head_dim)).transpose(1, 2)
    q, k, v = (tensor.detach().requires_grad_() for tensor in projected)

    def gradients(_: LayerInputs, out: torch.Tensor, *, keep: bool = False) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, (q, k, v), dheads, retain_graph=keep)

    alone = DifferentiableCalls(lambda attention, _: attention(q, k, v, causal=causal), gradients)
    return alone.call(attention, inputs, mode)


def oracle(inputs: LayerInputs, modes: tuple[str, ...], *, fp8: bool = False) -> dict[str, torch.Tensor]:
    """Return out, and with the mode bwd dx and every weight's gradient, in float64."""
    if fp8:
        raise UnsupportedCase("Layers have no oracle for inputs rounded to FP8.")
    case = inputs.case
    exact = LayerReference(inputs.weights, inputs.x, head_dim=case.head_dim, causal=bool(case.causal))
    return exact.gradients(inputs.dout) if "bwd" in modes else {"out": exact.out()}


def small_case(dtype: str, head_dim: int) -> Case:
    """Return a layer with one head on 64 tokens."""
    heads = {"num_heads": 1, "num_kv_heads": 1}
    return layer_case("mha_fused", batch=1, seqlen=_SMALL_SEQLEN, **heads, head_dim=head_dim, dtype=dtype, causal=False)


LEVEL = measured(globals(), implementations=lambda: registry.implementations("layer"), around="op")
