"""What GPUs can do at most, by their names as people write them: «H100 SXM», «RTX 4060», «A10G».

Bounds for checks alone, from the makers' data sheets: dense rates, and for GeForce the 16-bit products that are added
up in float32. Where a name can mean several chips, each figure is that of the fastest, and the assumption is said. Of a
name that is not known, or of none, it is that of the fastest chip that exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from results import derive


@dataclass(frozen=True)
class ChipBounds:
    """The most of each that a chip has; `source` says where it is from and what was assumed."""

    tensor_tflops: float  # bfloat16 and float16, dense
    tf32_tflops: float
    float32_tflops: float
    float64_tflops: float
    bandwidth_gb_per_s: float
    power_w: float
    clock_mhz: float
    fp8: bool
    source: str
    known: bool = True  # the name is that of a chip

    def tflops(self, dtype: str | None) -> float:
        """Return the highest rate of products in a dtype: TF32 for float32, the highest of all where none is said."""
        if dtype == "float64":
            return self.float64_tflops
        if dtype == "float32":
            return max(self.tf32_tflops, self.float32_tflops)
        eight_bits = dtype not in ("float16", "bfloat16") and self.fp8
        return self.tensor_tflops * (2 if eight_bits else 1)


# words of the name -> TFLOP/s in 16 bits, TF32, float32, float64; GB/s; W; MHz; whether it multiplies 8-bit floats
_CHIPS: dict[str, tuple[float, float, float, float, float, float, float, bool]] = {
    "v100": (125, 15.7, 15.7, 7.8, 1134, 300, 1530, False),
    "t4": (65, 8.1, 8.1, 0.3, 320, 70, 1590, False),
    "a100 sxm4 80gb": (312, 156, 19.5, 19.5, 2039, 500, 1410, False),
    "a100 sxm4 40gb": (312, 156, 19.5, 19.5, 1555, 500, 1410, False),
    "a100 pcie 80gb": (312, 156, 19.5, 19.5, 1935, 300, 1410, False),
    "a100 pcie 40gb": (312, 156, 19.5, 19.5, 1555, 250, 1410, False),
    "a10": (125, 62.5, 31.2, 1.0, 600, 150, 1695, False),
    "a10g": (140, 70, 35, 1.1, 600, 300, 1710, False),
    "a30": (165, 82, 10.3, 10.3, 933, 165, 1440, False),
    "a40": (149.7, 74.8, 37.4, 1.2, 696, 300, 1740, False),
    "a6000": (154.8, 77.4, 38.7, 1.2, 768, 300, 1800, False),
    "a5000": (111.1, 55.6, 27.8, 0.9, 768, 230, 1695, False),
    "l4": (121, 60, 30.3, 0.5, 300, 72, 2040, True),
    "l40": (181, 90.5, 90.5, 1.4, 864, 300, 2490, True),
    "l40s": (362, 183, 91.6, 1.4, 864, 350, 2520, True),
    "rtx 6000 ada": (364, 182, 91.1, 1.4, 960, 300, 2505, True),
    "rtx 3060": (25.6, 12.8, 12.8, 0.2, 360, 170, 1777, False),
    "rtx 3070": (40.6, 20.3, 20.3, 0.3, 448, 220, 1725, False),
    "rtx 3080": (68, 34.1, 34.1, 0.5, 912, 350, 1710, False),
    "rtx 3090": (80, 40, 40, 0.6, 1008, 450, 1860, False),
    "rtx 4060": (30.2, 15.1, 15.1, 0.3, 272, 115, 2460, True),
    "rtx 4060 ti": (44.1, 22.1, 22.1, 0.4, 288, 165, 2535, True),
    "rtx 4070": (88.2, 44.1, 44.1, 0.7, 672, 285, 2610, True),
    "rtx 4080": (104.4, 52.2, 52.2, 0.8, 737, 320, 2550, True),
    "rtx 4090": (165.2, 82.6, 82.6, 1.3, 1008, 450, 2520, True),
    "rtx 5070": (88, 44, 44, 0.7, 896, 300, 2512, True),
    "rtx 5080": (112.6, 56.3, 56.3, 0.9, 960, 360, 2617, True),
    "rtx 5090": (209.5, 104.8, 104.8, 1.6, 1792, 575, 2407, True),
    "h20": (148, 74, 44, 1, 4000, 400, 1980, True),
    "h100 sxm": (989.5, 494.5, 67, 67, 3350, 700, 1980, True),
    "h100 nvl": (835.5, 417.5, 60, 60, 3900, 400, 1980, True),
    "h100 pcie": (756.5, 378, 51, 51, 2000, 350, 1755, True),
    "h800": (989.5, 494.5, 67, 67, 3350, 700, 1980, True),
    "h200": (989.5, 494.5, 67, 67, 4800, 700, 1980, True),
    "gh200": (989.5, 494.5, 67, 67, 4900, 1000, 1980, True),
    "b200": (2250, 1125, 80, 40, 8000, 1000, 1965, True),
    "gb200": (2500, 1250, 80, 45, 8000, 1200, 2062, True),
    "b300": (2500, 1250, 80, 45, 8000, 1400, 2062, True),
    "gb300": (2500, 1250, 80, 45, 8000, 1400, 2062, True),
    "mi250x": (383, 95.7, 95.7, 95.7, 3277, 560, 1700, False),
    "mi300x": (1307.4, 653.7, 163.4, 163.4, 5300, 750, 2100, True),
    "mi325x": (1307.4, 653.7, 163.4, 163.4, 6000, 1000, 2100, True),
    "mi355x": (2516, 1258, 157.3, 78.6, 8000, 1400, 2400, True),
}
_MAKERS = {"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "gpu", "hbm2", "hbm2e", "hbm3", "hbm3e", "laptop"}
_SAME_WORD = {"sxm5": "sxm", "sxm2": "sxm", "sxm4": "sxm", "80g": "80gb", "40g": "40gb", "pci": "pcie"}


@cache
def bounds_of(gpu_name: str | None) -> ChipBounds:
    """Return what a GPU of that name has at most."""
    words = _words(gpu_name)
    exact = derive.PEAKS.get(gpu_name or "")
    named = [name for name in _CHIPS if _words(name) & words and _model(name) <= words]
    longest = max((len(_model(name)) for name in named), default=0)
    fitting = [name for name in named if len(_model(name)) == longest]
    closest = [name for name in fitting if _words(name) <= words] or [
        name for name in fitting if _fits(_words(name) - _model(name), words)
    ]
    chips = closest or fitting
    if not chips:
        rates = [max(figures) for figures in zip(*_CHIPS.values(), strict=True)]
        return ChipBounds(*rates, source="of the fastest GPU that exists, as the name says no known one", known=False)
    rates = [max(figures) for figures in zip(*(_CHIPS[name] for name in chips), strict=True)]
    if exact:
        rates[:3], rates[4] = [exact.tensor_tflops, exact.tf32_tflops, exact.float32_tflops], exact.bandwidth_gb_per_s
        return ChipBounds(*rates, source=exact.source)
    taken = f", taken as the fastest of {', '.join(sorted(chips))}" if len(chips) > 1 else ""
    return ChipBounds(*rates, source=f"data sheet of {chips[0] if not taken else 'that name'}{taken}")


def _words(name: str | None) -> frozenset[str]:
    split = re.sub(r"(rtx|gtx)(?=\d)", r"\1 ", (name or "").lower().replace("_", " "))
    words = (_SAME_WORD.get(word, word) for word in re.split(r"[\s\-/,()]+", split) if word)
    return frozenset(word for word in words if word not in _MAKERS)


def _model(name: str) -> frozenset[str]:
    """Return the words that name the chip itself; the others say its board."""
    return frozenset(word for word in _words(name) if word not in ("sxm", "pcie", "nvl", "80gb", "40gb"))


def _fits(board: frozenset[str], words: frozenset[str]) -> bool:
    """Tell whether nothing that the name says of the board is another than this one."""
    kinds = ({"sxm", "pcie", "nvl"}, {"80gb", "40gb"})
    return all(not (words & kind) or not (board & kind) or words & board & kind for kind in kinds)
