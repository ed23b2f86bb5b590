"""Compile the kernels of a step of one token for several chips, with no GPU, in the sizes of Llama-2 7B.

kernels.tools.offline does so for the other packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..generation.projections import gated_kernel, heads_kernel, product_kernel
from ..generation.step import TILES, form_of
from .compile import Call, Compilable, Pointer

_SIZES = {
    "heads": (64, 4096),
    "out": (4096, 4096),
    "gated": (11008, 4096),
    "down": (4096, 11008),
    "logits": (32000, 4096),
}
_CHIPS = (80, 90)  # without and with programmatic dependent launch
_OPTIONS = ("num_warps", "launch_pdl")


@dataclass(frozen=True)
class StepVariant(Compilable):
    """One thing to compile."""

    use: str  # a name of kernels.generation.step.TILES
    chip: int  # 90 for compute capability 9.0

    package = "generation"

    def call(self) -> Call:
        """Return the kernel with arguments and options that make Triton compile this variant."""
        _, form = form_of(TILES[self.use], *_SIZES[self.use], chained=self.chip >= 90)
        kernel, given = self._kernel()
        options = {name: form[name] for name in _OPTIONS if name in form}
        given |= {"epsilon": 1e-5, "FORM": form["FORM"], "lengths_ptr": Pointer("i32")}
        pointers = {name: Pointer("bf16") for name in kernel.arg_names if name.endswith("_ptr")}
        return kernel, {name: {**pointers, **given}[name] for name in kernel.arg_names}, options

    def _kernel(self) -> tuple[Any, dict[str, Any]]:
        """Return the kernel and the arguments that only this use has."""
        if self.use == "heads":
            sizes = {"HEADS": 32, "KEY_HEADS": 32, "HALF": 64}
            tuples = {"weights": (Pointer("bf16"),) * 3, "angles": (Pointer("fp32"),) * 2}
            return heads_kernel, {"key_stride_h": 4096, "value_stride_h": 4096, **tuples, **sizes}
        if self.use == "gated":
            return gated_kernel, {}
        return product_kernel, {"NORMED": self.use == "logits", "ADDED": self.use != "logits"}

    def __str__(self) -> str:
        tile = TILES[self.use]
        return (
            f"{self.package:12} {self.use:12} sm_{self.chip:<3} rows {tile.rows} block {tile.block} w{tile.num_warps}"
        )


def gated() -> list[StepVariant]:
    """Return the variants that the tests compile: all."""
    return [StepVariant(use, chip) for use in TILES for chip in _CHIPS]
