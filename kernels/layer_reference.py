"""The oracle of layers: a layer and the gradients of its input and of every weight in float64, from the definition.

It uses neither autograd nor kernels/layers.py, so it shares no fault with them. Weights have the names of the modules'
parameters; each is (out features, in features).
"""

from collections.abc import Mapping

import torch

from . import reference

Weights = Mapping[str, torch.Tensor]  # qkv.weight, out.weight, out.bias ...
Gradients = dict[str, torch.Tensor]


class LayerReference:
    """One layer applied to one input."""

    def __init__(self, weights: Weights, x: torch.Tensor, *, head_dim: int, causal: bool) -> None:
        self.weights = {name: weight.detach().double() for name, weight in weights.items()}
        self.x = x.detach().double().flatten(0, 1)  # (tokens, hidden)
        self.batch, self.head_dim, self.causal = x.shape[0], head_dim, causal
        if "qkv.weight" in self.weights:
            parts = self._linear("qkv", self.x).chunk(3, dim=1)
        elif "down.weight" in self.weights:
            self.latent = self._linear("down", self.x)
            parts = (self._linear("q", self.x), *self._linear("up", self.latent).chunk(2, dim=1))
        else:
            parts = tuple(self._linear(name, self.x) for name in ("q", "k", "v"))
        self.q, self.k, self.v = map(self._to_heads, parts)

    def out(self) -> torch.Tensor:
        """Return the output of the layer: (batch, seqlen, hidden)."""
        return self._out_of(reference.attention(self.q, self.k, self.v, causal=self.causal).out)

    def gradients(self, dout: torch.Tensor) -> Gradients:
        """Return out, dx and the gradients of sum(out * dout) for each weight and bias: dw_qkv, db_out, and so on."""
        dy = dout.detach().double().flatten(0, 1)
        out_weight = self.weights["out.weight"]
        dheads = self._to_heads(dy @ out_weight)
        found = reference.gradients(self.q, self.k, self.v, dheads, causal=self.causal)
        result = {"out": self._out_of(found.out)}
        self._weight_gradients(result, "out", self._to_tokens(found.out), dy)
        dq, dk, dv = map(self._to_tokens, (found.dq, found.dk, found.dv))
        if "qkv.weight" in self.weights:
            dx = self._weight_gradients(result, "qkv", self.x, torch.cat((dq, dk, dv), dim=1))
        elif "down.weight" in self.weights:
            dlatent = self._weight_gradients(result, "up", self.latent, torch.cat((dk, dv), dim=1))
            dx = self._weight_gradients(result, "q", self.x, dq)
            dx = dx + self._weight_gradients(result, "down", self.x, dlatent)
        else:
            each = zip(("q", "k", "v"), (dq, dk, dv), strict=True)
            parts = [self._weight_gradients(result, name, self.x, gradient) for name, gradient in each]
            dx = parts[0] + parts[1] + parts[2]
        return result | {"dx": dx.view(dout.shape)}

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _weight_gradients(self, result: Gradients, name: str, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """Add the gradients of one projection to `result`, and return the gradient of its input."""
        result[f"dw_{name}"] = dy.T @ x
        if f"{name}.bias" in self.weights:
            result[f"db_{name}"] = dy.sum(0)
        return dy @ self.weights[f"{name}.weight"]

    def _out_of(self, heads: torch.Tensor) -> torch.Tensor:
        return self._linear("out", self._to_tokens(heads)).unflatten(0, (self.batch, -1))

    def _to_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (tokens, heads x head_dim) into (batch, heads, seqlen, head_dim)."""
        return x.unflatten(1, (-1, self.head_dim)).unflatten(0, (self.batch, -1)).transpose(1, 2)

    def _to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (batch, heads, seqlen, head_dim) into (tokens, heads x head_dim)."""
        return x.transpose(1, 2).flatten(2).flatten(0, 1)
