"""What GPUs can do at most, by their names as people write them: «H100 SXM», «RTX 4060», «A10G».

Bounds for checks alone, from the makers' documents. Where a name can mean several chips, each figure is that of the
fastest, and the assumption is said. Of a name that is not known, or of none, it is that of the fastest GPU there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    memory_gb: float
    power_w: float
    clock_mhz: float
    fp8: bool  # multiplies 8-bit floats, at twice the 16-bit rate
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


# Documents of the makers. Tensor rates that they print with sparsity are halved. GeForce whitepapers print 16-bit rates
# added up in float32 and in float16: the former stand here.
_AMPERE = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_HGX = "NVIDIA HGX and Blackwell architecture technical briefs"
_LAPTOPS = "NVIDIA's page of GeForce RTX 40 laptops, with Dynamic Boost"
_AMD = "AMD Instinct data sheet"

# words of the name -> TFLOP/s in 16 bits, TF32, float32, float64; GB/s; GB; W; MHz; 8-bit floats; document
_CHIPS: dict[str, tuple[float, float, float, float, float, float, float, float, bool, str]] = {
    "v100": (125, 15.7, 15.7, 7.8, 900, 32, 300, 1530, False, "NVIDIA V100 data sheet"),
    "v100s": (130, 16.4, 16.4, 8.2, 1134, 32, 250, 1597, False, "NVIDIA V100 data sheet"),
    "t4": (65, 8.1, 8.1, 0.3, 320, 16, 70, 1590, False, "NVIDIA T4 data sheet"),
    "a100 sxm4 80gb": (312, 156, 19.5, 19.5, 2039, 80, 500, 1410, False, "NVIDIA A100 data sheet, custom cooling"),
    "a100 sxm4 40gb": (312, 156, 19.5, 19.5, 1555, 40, 400, 1410, False, "NVIDIA A100 data sheet"),
    "a100 pcie 80gb": (312, 156, 19.5, 19.5, 1935, 80, 300, 1410, False, "NVIDIA A100 data sheet"),
    "a100 pcie 40gb": (312, 156, 19.5, 19.5, 1555, 40, 250, 1410, False, "NVIDIA A100 data sheet"),
    "a10": (125, 62.5, 31.2, 1, 600, 24, 150, 1695, False, "NVIDIA A10 data sheet"),
    "a10g": (70, 35, 35, 1.1, 600, 24, 300, 1710, False, "NVIDIA A10G data sheet"),
    "a30": (165, 82, 10.3, 10.3, 933, 24, 165, 1440, False, "NVIDIA A30 data sheet"),
    "a40": (149.7, 74.8, 37.4, 1.2, 696, 48, 300, 1740, False, "NVIDIA A40 data sheet"),
    "a6000": (154.8, 77.4, 38.7, 1.2, 768, 48, 300, 1800, False, _AMPERE),
    "a5000": (111.1, 55.6, 27.8, 0.9, 768, 24, 230, 1695, False, "NVIDIA RTX A5000 data sheet"),
    "l4": (121, 60, 30.3, 0.5, 300, 24, 72, 2040, True, "NVIDIA L4 data sheet"),
    "l40": (181.1, 90.5, 90.5, 1.4, 864, 48, 300, 2490, True, "NVIDIA L40 data sheet"),
    "l40s": (362.1, 183, 91.6, 1.4, 864, 48, 350, 2520, True, "NVIDIA L40S data sheet"),
    "rtx 6000 ada": (364.3, 182.1, 91.1, 1.4, 960, 48, 300, 2505, True, _ADA),
    "rtx pro 6000": (503.8, 251.9, 126, 2, 1792, 96, 600, 2617, True, _BLACKWELL),
    "rtx 3060": (25.5, 12.7, 12.7, 0.2, 360, 12, 170, 1777, False, _AMPERE),
    "rtx 3060 ti": (32.4, 16.2, 16.2, 0.3, 608, 8, 200, 1665, False, _AMPERE),
    "rtx 3070": (40.6, 20.3, 20.3, 0.3, 448, 8, 220, 1725, False, _AMPERE),
    "rtx 3070 ti": (43.5, 21.7, 21.7, 0.3, 608, 8, 290, 1770, False, _AMPERE),
    "rtx 3080": (61.3, 30.6, 30.6, 0.5, 912, 12, 350, 1710, False, _AMPERE),
    "rtx 3080 ti": (68.2, 34.1, 34.1, 0.5, 912, 12, 350, 1665, False, _AMPERE),
    "rtx 3090": (71.2, 35.6, 35.6, 0.6, 936, 24, 350, 1695, False, _AMPERE),
    "rtx 3090 ti": (80, 40, 40, 0.6, 1008, 24, 450, 1860, False, _AMPERE),
    "rtx 4060": (30.2, 15.1, 15.1, 0.3, 272, 8, 115, 2460, True, _ADA),
    "rtx 4060 ti": (44.1, 22.1, 22.1, 0.4, 288, 16, 165, 2535, True, _ADA),
    "rtx 4060 laptop": (29.1, 14.6, 14.6, 0.2, 256, 8, 140, 2370, True, _LAPTOPS),
    "rtx 4070": (58.3, 29.1, 29.1, 0.5, 504, 12, 200, 2475, True, _ADA),
    "rtx 4070 super": (71, 35.5, 35.5, 0.6, 504, 12, 220, 2475, True, _ADA),
    "rtx 4070 ti": (80.2, 40.1, 40.1, 0.6, 504, 12, 285, 2610, True, _ADA),
    "rtx 4070 ti super": (88.2, 44.1, 44.1, 0.7, 672, 16, 285, 2610, True, _ADA),
    "rtx 4080": (97.5, 48.7, 48.7, 0.8, 717, 16, 320, 2505, True, _ADA),
    "rtx 4080 super": (104.4, 52.2, 52.2, 0.8, 737, 16, 320, 2550, True, _ADA),
    "rtx 4090": (165.2, 82.6, 82.6, 1.3, 1008, 24, 450, 2520, True, _ADA),
    "rtx 5070": (61.7, 30.9, 30.9, 0.5, 672, 12, 250, 2512, True, _BLACKWELL),
    "rtx 5070 ti": (87.9, 43.9, 43.9, 0.7, 896, 16, 300, 2452, True, _BLACKWELL),
    "rtx 5080": (112.6, 56.3, 56.3, 0.9, 960, 16, 360, 2617, True, _BLACKWELL),
    "rtx 5090": (209.5, 104.8, 104.8, 1.6, 1792, 32, 575, 2407, True, _BLACKWELL),
    "h20": (148, 74, 44, 1, 4000, 96, 400, 1980, True, "NVIDIA H20 data sheet"),
    "h100 sxm": (989.5, 494.5, 67, 67, 3350, 80, 700, 1980, True, "NVIDIA H100 data sheet"),
    "h100 nvl": (835.5, 417.5, 60, 60, 3900, 94, 400, 1980, True, "NVIDIA H100 data sheet"),
    "h100 pcie": (756.5, 378, 51, 51, 2000, 80, 350, 1755, True, "NVIDIA H100 data sheet, 2022"),
    "h800": (989.5, 494.5, 67, 1, 3350, 80, 700, 1980, True, "NVIDIA H800 data sheet"),
    "h200 sxm": (989.5, 494.5, 67, 67, 4800, 141, 700, 1980, True, "NVIDIA H200 data sheet"),
    "h200 nvl": (835.5, 417.5, 60, 60, 4800, 141, 600, 1980, True, "NVIDIA H200 data sheet"),
    "gh200": (989.5, 494.5, 67, 67, 4900, 144, 1000, 1980, True, "NVIDIA GH200 data sheet, HBM3e"),
    "b200": (2250, 1125, 80, 40, 8000, 192, 1000, 1965, True, _HGX),
    "gb200": (2500, 1250, 90, 45, 8000, 192, 1200, 2062, True, _HGX),
    "b300": (2250, 1125, 75, 1.3, 8000, 288, 1100, 2032, True, _HGX),
    "gb300": (2500, 1250, 83, 1.4, 8000, 288, 1400, 2062, True, _HGX),
    "mi250x": (383, 95.7, 95.7, 95.7, 3277, 128, 560, 1700, False, _AMD),
    "mi300x": (1307.4, 653.7, 163.4, 163.4, 5300, 192, 750, 2100, True, _AMD),
    "mi325x": (1307.4, 653.7, 163.4, 163.4, 6000, 256, 1000, 2100, True, _AMD),
    "mi355x": (2516.6, 157.3, 157.3, 78.6, 8000, 288, 1400, 2400, True, _AMD),
}
_MAKERS = {"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "gpu", "hbm2", "hbm2e", "hbm3", "hbm3e"}
_SAME_WORD = {
    "sxm5": "sxm",
    "sxm2": "sxm",
    "sxm4": "sxm",
    "80g": "80gb",
    "40g": "40gb",
    "pci": "pcie",
    "mobile": "laptop",
}


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
    chips = sorted(closest or fitting)
    if not chips:
        return _most(_CHIPS, "of the fastest GPU that exists, as the name says no known one", known=False)
    if exact:
        tensor, tf32, float32 = exact.tensor_tflops, exact.tf32_tflops, exact.float32_tflops
        return replace(
            _most(chips, exact.source),
            tensor_tflops=tensor,
            tf32_tflops=tf32,
            float32_tflops=float32,
            bandwidth_gb_per_s=exact.bandwidth_gb_per_s,
        )
    source = ", ".join(dict.fromkeys(_CHIPS[name][-1] for name in chips))
    assumed = f"; taken as the fastest of {', '.join(chips)}" if len(chips) > 1 else ""
    assumed += "; taken as the desktop's" if "laptop" in words and "laptop" not in _words(chips[0]) else ""
    return _most(chips, source + assumed)


def _most(chips: Iterable[str], source: str, *, known: bool = True) -> ChipBounds:
    """Return the highest of each figure of some chips."""
    figures = zip(*(_CHIPS[name][:-1] for name in chips), strict=True)
    return ChipBounds(*(max(each) for each in figures), source=source, known=known)


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
