"""A decoding step of a Llama of transformers for one token, in five or six launches a layer.

kernels/DESIGN.md lists the launches. The weights are those of the module of transformers, not copies.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import gcd
from typing import Any

import torch

from ..registry import UnsupportedCase

FAMILIES = ("llama", "mistral")  # RMS norm, rotary angles over whole heads, a gated MLP with SiLU, no biases
_CHAINED_FROM = (9, 0)  # compute capability with programmatic dependent launch

PAIR_ROWS, ROWS = 2, 4  # most rows of a matrix in a program: of each of a pair of matrices, and of one alone
BLOCK, NUM_WARPS = 4096, 8  # columns that a program loads at once

Tensors = tuple[torch.Tensor, ...]
# Attention to the cache of a layer: q (1, num_heads, 1, head_dim), keys and values (1, num_kv_heads, context, head_dim)
# and the length.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class LlamaStep:
    """The decoding step of one model for one sequence."""

    def __init__(self, module: Any) -> None:
        """Take a LlamaForCausalLM or MistralForCausalLM, whose weights may change but not move.

        Raises UnsupportedCase for another family, or for biases.
        """
        config = module.config
        if config.model_type not in FAMILIES or getattr(config, "attention_bias", False):
            raise UnsupportedCase(
                f"A fused step takes {' and '.join(FAMILIES)} without biases, not {config.model_type}."
            )
        self._module = module
        device = module.lm_head.weight.device
        self._chained = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CHAINED_FROM
        self._angles: Tensors | None = None

    @torch.no_grad()
    def logits(
        self, token: torch.Tensor, caches: Sequence[Tensors], lengths: torch.Tensor, attend: Attend, *, dropped: int = 0
    ) -> torch.Tensor:
        """Return the logits (1, 1, vocabulary) after a token (1, 1), and store its keys and values at row lengths - 1.

        `caches` are the keys and values of each layer; `lengths` is int32 (1,) on the device. `dropped` is the number
        of tokens before the first row of a cache that holds only a window.
        """
        body = self._module.model
        x = body.embed_tokens(token).view(-1)
        angles = tuple(table[dropped:] for table in self._angles_up_to(dropped + caches[0][0].shape[2]))
        for layer, (keys, values) in zip(body.layers, caches, strict=True):
            inside, mlp = layer.self_attn, layer.mlp
            q = self._heads(x, layer, angles, lengths, (keys, values))
            out = attend(q, keys, values, lengths)
            self._product(out.view(-1), inside.o_proj.weight, x, added=True)
            hidden = self._gated(x, layer.post_attention_layernorm, mlp)
            self._product(hidden, mlp.down_proj.weight, x, added=True)
        logits = torch.empty(self._module.lm_head.weight.shape[0], dtype=x.dtype, device=x.device)
        self._product(x, self._module.lm_head.weight, logits, norm=body.norm)
        return logits.view(1, 1, -1)

    def _angles_up_to(self, context: int) -> Tensors:
        """Return cosines and sines of all positions, (positions, head_dim / 2) in float32."""
        if self._angles is None or len(self._angles[0]) < context:
            weight = self._module.lm_head.weight
            positions = torch.arange(context, device=weight.device)[None]
            both = self._module.model.rotary_emb(torch.empty(0, device=weight.device), positions)
            self._angles = tuple(x[0, :, : x.shape[2] // 2].float().contiguous() for x in both)
        return self._angles

    def _heads(
        self, x: torch.Tensor, layer: Any, angles: Tensors, lengths: torch.Tensor, cache: Tensors
    ) -> torch.Tensor:
        """Write the token's keys and values of a layer into the cache, and return its queries."""
        from .projections import heads_kernel

        inside, norm = layer.self_attn, layer.input_layernorm
        head_dim, key_heads = inside.head_dim, cache[0].shape[1]
        half, heads = head_dim // 2, inside.q_proj.weight.shape[0] // head_dim
        rows, form = form_of(PAIR_ROWS, half, x.numel(), chained=self._chained)
        q = torch.empty((1, heads, 1, head_dim), dtype=x.dtype, device=x.device)
        weights = (inside.q_proj.weight, inside.k_proj.weight, inside.v_proj.weight)
        heads_kernel[((heads + 2 * key_heads) * half // rows,)](
            *(x, norm.weight, weights, angles, lengths, q, *cache),
            *(x.stride(1) for x in cache),
            *(norm.variance_epsilon, heads, key_heads, half),
            **form,
        )
        return q

    def _gated(self, x: torch.Tensor, norm: Any, mlp: Any) -> torch.Tensor:
        """Return the input of the last projection of an MLP."""
        from .projections import gated_kernel

        width = mlp.gate_proj.weight.shape[0]
        rows, form = form_of(PAIR_ROWS, width, x.numel(), chained=self._chained)
        out = torch.empty(width, dtype=x.dtype, device=x.device)
        weights = (norm.weight, mlp.gate_proj.weight, mlp.up_proj.weight)
        gated_kernel[(width // rows,)](x, *weights, out, norm.variance_epsilon, **form)
        return out

    def _product(
        self, x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, *, added: bool = False, norm: Any = None
    ) -> None:
        """Write matrix @ x to out, or add it. With a norm, x is normalized first."""
        from .projections import product_kernel

        rows, form = form_of(ROWS, *matrix.shape, chained=self._chained)
        gain, epsilon = (x, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        settings = {"NORMED": norm is not None, "ADDED": added}
        product_kernel[(matrix.shape[0] // rows,)](x, gain, matrix, out, epsilon, **settings, **form)


@cache
def form_of(most_rows: int, rows: int, columns: int, *, chained: bool) -> tuple[int, dict[str, Any]]:
    """Return the rows of a program, and FORM and the compiler options of a kernel for matrices of this shape."""
    from ..constants import Constants
    from .projections import ProductForm

    padded = 1 << (columns - 1).bit_length()
    form = ProductForm(gcd(rows, most_rows), columns, min(BLOCK, padded), chained)
    launch = {"num_warps": NUM_WARPS} | ({"launch_pdl": True} if chained else {})
    return form.rows, {"FORM": Constants(form), **launch}
