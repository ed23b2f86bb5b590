"""Compile triton_fa2's kernels with features for every chip, with no GPU, as kernels.tools.offline does the others.

Of each kernel, dtype and head_dim: once with every feature at once, which holds most, and once with none but unlike
head_dims or packed sequences. The kernels of packed sequences alone have 16 bits, one head_dim and no features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..attention.triton_fa2.features.arguments import FeatureConfig, FeatureShape, FeatureTensors, Rows
from ..attention.triton_fa2.features.backward import features_dkdv_kernel, features_dq_kernel
from ..attention.triton_fa2.features.forward import features_forward_kernel
from ..attention.triton_fa2.features.packed import packed_dkdv_kernel, packed_dq_kernel, packed_forward_kernel
from ..attention.triton_fa2.features.tuning import panels, tiles
from ..attention.triton_fa2.tile import Tile
from ..attention.triton_fa2.tuning import SHARED_MEMORY, chip_class
from ..constants import Constants
from .compile import Call, Compilable, Pointer
from .offline import CHIPS

KERNELS = {  # name -> kernel, the number of strided tensors, of statistics
    "forward": (features_forward_kernel, 4, 1),
    "dq": (features_dq_kernel, 6, 2),
    "dkdv": (features_dkdv_kernel, 6, 2),
    "packed_forward": (packed_forward_kernel, 4, 1),
    "packed_dq": (packed_dq_kernel, 6, 2),
    "packed_dkdv": (packed_dkdv_kernel, 6, 2),
}
_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256))  # of keys, of values


@dataclass(frozen=True)
class FeatureVariant(Compilable):
    """One thing to compile."""

    kernel: str  # a name of KERNELS
    chip: int  # 90 for compute capability 9.0
    precision: str  # half, ieee or tf32
    head_dim: int
    head_dim_v: int
    everything: bool  # all features, else packed sequences alone
    tile: Tile

    package = "features"

    def call(self) -> Call:
        """Return the kernel with arguments and options that make Triton compile this variant."""
        kernel, strided, statistics = KERNELS[self.kernel]
        number, wide = ("bf16", "fp32") if self.precision == "half" else ("fp32", "fp64")
        rows = [Rows(Pointer(number), 4096, 4096, 4096) for _ in range(strided)]
        stats = [Pointer(wide), Pointer("fp32")][:statistics]
        shape = FeatureShape(16, 4, 4096, 4096, 4096, 4096, 0.125, 30.0, 429496729, 1.1, 4096, 4096)
        options = {"num_warps": self.tile.num_warps, "num_stages": self.tile.num_stages}
        return kernel, [*rows, *stats, self._tensors(), shape, Constants(self._config())], options

    def _tensors(self) -> FeatureTensors:
        floats, integers = Pointer("fp32"), Pointer("i32")
        if self.everything:
            ends = (None, None, None, None, Pointer("i64"))
            return FeatureTensors(floats, 4096, 4096, 4096, 1, floats, 16, floats, integers, integers, *ends)
        return FeatureTensors(None, 0, 0, 0, 0, None, 0, None, None, None, *(integers,) * 4, None)

    def _config(self) -> FeatureConfig:
        first, second = panels(self.head_dim)
        on = self.everything
        return FeatureConfig(
            block_m=self.tile.block_m,
            block_n=self.tile.block_n,
            head_dim=self.head_dim,
            block_d=first,
            block_d2=second,
            head_dim_v=self.head_dim_v,
            block_dv=self.head_dim_v,
            has_left=False,
            has_right=True,
            softcap=on,
            slopes=on,
            sinks=on,
            mask="additive" if on else "",
            prefixes=on,
            documents=on,
            dropout=on,
            bounded=not on,
            half=self.precision == "half",
            precision="ieee" if self.precision == "half" else self.precision,
        )

    def __str__(self) -> str:
        t, which = self.tile, "all" if self.everything else "packed"
        dims = f"{self.head_dim:3} {self.head_dim_v:3}"
        name = f"{self.package:12} {self.kernel:14} sm_{self.chip:<3} {self.precision:6} {dims}"
        return f"{name} {which:6} {t.block_m}x{t.block_n} w{t.num_warps} s{t.num_stages}"


def variants() -> Iterator[FeatureVariant]:
    """Yield the first tile of every row of the table, for every chip."""
    for chip in CHIPS:
        for precision, itemsize in (("half", 2), ("ieee", 4), ("tf32", 4)):
            for kernel in KERNELS:
                for dims in _DIMS:
                    tile = tiles(kernel, itemsize, *dims, chip_class(chip, SHARED_MEMORY[chip]))[0]
                    alone = kernel.startswith("packed")
                    if alone and (precision != "half" or dims not in ((64, 64), (128, 128))):
                        continue
                    for everything in (False,) if alone else (True, False):
                        yield FeatureVariant(kernel, chip, precision, *dims, everything, tile)


def gated() -> list[Any]:
    """Return the variants that the tests compile: those with 99 KB and sm_90's code, float32 at one head_dim."""
    return [
        v
        for v in variants()
        if v.precision == "half"
        and (v.everything or v.head_dim == 192 or v.kernel.startswith("packed"))
        and (v.chip in (86, 90) or v.head_dim == 128)
        and v.chip != 89
        or v.precision in ("ieee", "tf32")
        and v.everything
        and v.head_dim == 128
        and v.chip in (86, 90)
    ]
