"""The table of GPUs for the checks, the shares of peak and the memory calculator: one row each, from data sheets.

What a GPU reached in practice is not here: each run records the matrix product and the copy that it measured
(`Run.measured_tflops`, `Run.measured_gbs`). To add a GPU, add a row to GPUS, and its name in DRIVER_NAMES if the driver
reports more words than the row's name has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

# Bytes of shared memory that one thread block can use (CUDA C++ Programming Guide, table of compute capabilities;
# for AMD the LDS of a compute unit, from the CDNA ISA documents), in KiB by compute capability.
_SHARED_KB = {"7.0": 96, "7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99}
_SHARED_KB |= {"gfx90a": 64, "gfx942": 64, "gfx950": 160}
_WITH_FP8 = ("8.9", "9.0", "10.0", "10.3", "12.0", "gfx942", "gfx950")


@dataclass(frozen=True)
class Chip:
    """The data sheet of a GPU; rates are dense, without sparsity."""

    tensor_tflops: float  # bfloat16 and float16 with float32 accumulation
    tf32_tflops: float
    float32_tflops: float  # without tensor cores
    float64_tflops: float  # on tensor cores if they multiply float64
    bandwidth_gb_per_s: float
    memory_gb: float
    power_w: float
    clock_mhz: float  # boost clock
    sm_count: int | None  # compute units on AMD; None if the maker does not say
    l2_mb: float
    compute_capability: str  # the gfx name on AMD
    released: int  # year
    source: str  # the maker's document, and what was assumed
    total_mb: float | None = None  # MiB that nvidia-smi reports; None if not recorded
    known: bool = True  # False for the bounds of an unknown GPU

    @property
    def fp8(self) -> bool:
        """Return whether the tensor cores multiply 8-bit floats, at twice the 16-bit rate."""
        return self.compute_capability in _WITH_FP8

    @property
    def fp8_tflops(self) -> float | None:
        """Return the rate of 8-bit floats; None if the tensor cores do not multiply them."""
        return 2 * self.tensor_tflops if self.fp8 else None

    @property
    def shared_kb(self) -> int:
        """Return the KiB of shared memory that one thread block can use."""
        return _SHARED_KB[self.compute_capability]

    def tflops(self, dtype: str | None) -> float:
        """Return the highest rate in a dtype: TF32 for float32, the highest rate of all if the dtype is None."""
        if dtype == "float64":
            return self.float64_tflops
        if dtype == "float32":
            return max(self.tf32_tflops, self.float32_tflops)
        eight_bits = dtype not in ("float16", "bfloat16") and self.fp8
        return self.tensor_tflops * (2 if eight_bits else 1)


# Tensor rates that a maker prints with sparsity are halved. GeForce whitepapers print two 16-bit rates; these are the
# rates with float32 accumulation. The power of the A100 80GB SXM is that of its custom cooling.
_A100, _H100, _H200 = (f"NVIDIA {name} data sheet" for name in ("A100", "H100", "H200"))
_AMPERE = "NVIDIA Ampere GA102 GPU architecture whitepaper"
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper"
_HGX = "NVIDIA HGX and Blackwell architecture technical briefs"
_LAPTOPS = "NVIDIA's page of GeForce RTX 40 laptops, with Dynamic Boost"
_AMD = "AMD Instinct data sheet"

# TFLOP/s in 16 bits, TF32, float32, float64; GB/s; GB; W; MHz; SMs; MB of L2; compute capability; year; document;
# MiB that nvidia-smi reports.
GPUS: dict[str, Chip] = {
    "v100": Chip(125, 15.7, 15.7, 7.8, 900, 32, 300, 1530, 80, 6, "7.0", 2017, "NVIDIA V100 data sheet"),
    "v100s": Chip(130, 16.4, 16.4, 8.2, 1134, 32, 250, 1597, 80, 6, "7.0", 2019, "NVIDIA V100 data sheet"),
    "t4": Chip(65, 8.1, 8.1, 0.3, 320, 16, 70, 1590, 40, 4, "7.5", 2018, "NVIDIA T4 data sheet"),
    "a100 sxm4 80gb": Chip(312, 156, 19.5, 19.5, 2039, 80, 500, 1410, 108, 40, "8.0", 2020, _A100),
    "a100 sxm4 40gb": Chip(312, 156, 19.5, 19.5, 1555, 40, 400, 1410, 108, 40, "8.0", 2020, _A100),
    "a100 pcie 80gb": Chip(312, 156, 19.5, 19.5, 1935, 80, 300, 1410, 108, 40, "8.0", 2021, _A100),
    "a100 pcie 40gb": Chip(312, 156, 19.5, 19.5, 1555, 40, 250, 1410, 108, 40, "8.0", 2020, _A100),
    "a10": Chip(125, 62.5, 31.2, 1, 600, 24, 150, 1695, 72, 6, "8.6", 2021, "NVIDIA A10 data sheet"),
    "a10g": Chip(70, 35, 35, 1.1, 600, 24, 300, 1710, 80, 6, "8.6", 2021, "NVIDIA A10G data sheet"),
    "a30": Chip(165, 82, 10.3, 10.3, 933, 24, 165, 1440, 56, 24, "8.0", 2021, "NVIDIA A30 data sheet"),
    "a40": Chip(149.7, 74.8, 37.4, 1.2, 696, 48, 300, 1740, 84, 6, "8.6", 2020, "NVIDIA A40 data sheet"),
    "a6000": Chip(154.8, 77.4, 38.7, 1.2, 768, 48, 300, 1800, 84, 6, "8.6", 2020, _AMPERE),
    "a5000": Chip(111.1, 55.6, 27.8, 0.9, 768, 24, 230, 1695, 64, 6, "8.6", 2021, "NVIDIA RTX A5000 data sheet"),
    "l4": Chip(121, 60, 30.3, 0.5, 300, 24, 72, 2040, 58, 48, "8.9", 2023, "NVIDIA L4 data sheet"),
    "l40": Chip(181.1, 90.5, 90.5, 1.4, 864, 48, 300, 2490, 142, 96, "8.9", 2022, "NVIDIA L40 data sheet"),
    "l40s": Chip(362.1, 183, 91.6, 1.4, 864, 48, 350, 2520, 142, 96, "8.9", 2023, "NVIDIA L40S data sheet", 46068),
    "rtx 6000 ada": Chip(364.3, 182.1, 91.1, 1.4, 960, 48, 300, 2505, 142, 96, "8.9", 2022, _ADA),
    "rtx pro 6000": Chip(503.8, 251.9, 126, 2, 1792, 96, 600, 2617, 188, 128, "12.0", 2025, _BLACKWELL),
    "rtx 3060": Chip(25.5, 12.7, 12.7, 0.2, 360, 12, 170, 1777, 28, 3, "8.6", 2021, _AMPERE),
    "rtx 3060 ti": Chip(32.4, 16.2, 16.2, 0.3, 608, 8, 200, 1665, 38, 4, "8.6", 2020, _AMPERE),
    "rtx 3070": Chip(40.6, 20.3, 20.3, 0.3, 448, 8, 220, 1725, 46, 4, "8.6", 2020, _AMPERE),
    "rtx 3070 ti": Chip(43.5, 21.7, 21.7, 0.3, 608, 8, 290, 1770, 48, 4, "8.6", 2021, _AMPERE),
    "rtx 3080": Chip(61.3, 30.6, 30.6, 0.5, 912, 12, 350, 1710, 70, 6, "8.6", 2022, _AMPERE),
    "rtx 3080 ti": Chip(68.2, 34.1, 34.1, 0.5, 912, 12, 350, 1665, 80, 6, "8.6", 2021, _AMPERE),
    "rtx 3090": Chip(71.2, 35.6, 35.6, 0.6, 936, 24, 350, 1695, 82, 6, "8.6", 2020, _AMPERE),
    "rtx 3090 ti": Chip(80, 40, 40, 0.6, 1008, 24, 450, 1860, 84, 6, "8.6", 2022, _AMPERE),
    "rtx 4060": Chip(30.2, 15.1, 15.1, 0.3, 272, 8, 115, 2460, 24, 24, "8.9", 2023, _ADA, 8188),
    "rtx 4060 ti": Chip(44.1, 22.1, 22.1, 0.4, 288, 16, 165, 2535, 34, 32, "8.9", 2023, _ADA),
    "rtx 4060 laptop": Chip(29.1, 14.6, 14.6, 0.2, 256, 8, 140, 2370, 24, 32, "8.9", 2023, _LAPTOPS),
    "rtx 4070": Chip(58.3, 29.1, 29.1, 0.5, 504, 12, 200, 2475, 46, 36, "8.9", 2023, _ADA),
    "rtx 4070 super": Chip(71, 35.5, 35.5, 0.6, 504, 12, 220, 2475, 56, 48, "8.9", 2024, _ADA),
    "rtx 4070 ti": Chip(80.2, 40.1, 40.1, 0.6, 504, 12, 285, 2610, 60, 48, "8.9", 2023, _ADA),
    "rtx 4070 ti super": Chip(88.2, 44.1, 44.1, 0.7, 672, 16, 285, 2610, 66, 48, "8.9", 2024, _ADA),
    "rtx 4080": Chip(97.5, 48.7, 48.7, 0.8, 717, 16, 320, 2505, 76, 64, "8.9", 2022, _ADA, 16376),
    "rtx 4080 super": Chip(104.4, 52.2, 52.2, 0.8, 737, 16, 320, 2550, 80, 64, "8.9", 2024, _ADA),
    "rtx 4090": Chip(165.2, 82.6, 82.6, 1.29, 1008, 24, 450, 2520, 128, 72, "8.9", 2022, _ADA, 24564),
    "rtx 5070": Chip(61.7, 30.9, 30.9, 0.5, 672, 12, 250, 2512, 48, 48, "12.0", 2025, _BLACKWELL),
    "rtx 5070 ti": Chip(87.9, 43.9, 43.9, 0.7, 896, 16, 300, 2452, 70, 48, "12.0", 2025, _BLACKWELL),
    "rtx 5080": Chip(112.6, 56.3, 56.3, 0.9, 960, 16, 360, 2617, 84, 64, "12.0", 2025, _BLACKWELL),
    "rtx 5090": Chip(209.5, 104.8, 104.8, 1.6, 1792, 32, 575, 2407, 170, 96, "12.0", 2025, _BLACKWELL),
    "h20": Chip(148, 74, 44, 1, 4000, 96, 400, 1980, 78, 60, "9.0", 2023, "NVIDIA H20 data sheet"),
    "h100 sxm": Chip(989.5, 494.5, 67, 67, 3350, 80, 700, 1980, 132, 50, "9.0", 2022, _H100, 81559),
    "h100 nvl": Chip(835.5, 417.5, 60, 60, 3900, 94, 400, 1980, 132, 50, "9.0", 2023, _H100),
    "h100 pcie": Chip(756.5, 378, 51, 51, 2000, 80, 350, 1755, 114, 50, "9.0", 2022, "NVIDIA H100 data sheet, 2022"),
    "h800": Chip(989.5, 494.5, 67, 1, 3350, 80, 700, 1980, 132, 50, "9.0", 2023, "NVIDIA H800 data sheet"),
    "h200 sxm": Chip(989.5, 494.5, 67, 67, 4800, 141, 700, 1980, 132, 60, "9.0", 2024, _H200, 143771),
    "h200 nvl": Chip(835.5, 417.5, 60, 60, 4800, 141, 600, 1980, 132, 60, "9.0", 2024, _H200),
    "gh200": Chip(989.5, 494.5, 67, 67, 4900, 144, 1000, 1980, 132, 60, "9.0", 2024, "NVIDIA GH200 data sheet, HBM3e"),
    "b200": Chip(2250, 1125, 80, 40, 8000, 192, 1000, 1965, 148, 126, "10.0", 2024, _HGX),
    "gb200": Chip(2500, 1250, 90, 45, 8000, 192, 1200, 2062, None, 126, "10.0", 2024, _HGX),
    "b300": Chip(2250, 1125, 75, 1.3, 8000, 288, 1100, 2032, None, 126, "10.3", 2025, _HGX),
    "gb300": Chip(2500, 1250, 83, 1.4, 8000, 288, 1400, 2062, None, 126, "10.3", 2025, _HGX),
    "mi250x": Chip(383, 95.7, 95.7, 95.7, 3277, 128, 560, 1700, 220, 16, "gfx90a", 2021, _AMD),
    "mi300x": Chip(1307.4, 653.7, 163.4, 163.4, 5300, 192, 750, 2100, 304, 32, "gfx942", 2023, _AMD),
    "mi325x": Chip(1307.4, 653.7, 163.4, 163.4, 6000, 256, 1000, 2100, 304, 32, "gfx942", 2024, _AMD),
    "mi355x": Chip(2516.6, 157.3, 157.3, 78.6, 8000, 288, 1400, 2400, 256, 32, "gfx950", 2025, _AMD),
}
# Names that the driver reports, where they are more than the words of the row.
DRIVER_NAMES = {
    "NVIDIA H200": "h200 sxm",
    "NVIDIA H200 NVL": "h200 nvl",
    "NVIDIA H100 80GB HBM3": "h100 sxm",
    "NVIDIA H100 NVL": "h100 nvl",
    "NVIDIA H100 PCIe": "h100 pcie",
    "NVIDIA A100-SXM4-80GB": "a100 sxm4 80gb",
    "NVIDIA A100-SXM4-40GB": "a100 sxm4 40gb",
    "NVIDIA A100 80GB PCIe": "a100 pcie 80gb",
    "NVIDIA A100-PCIE-40GB": "a100 pcie 40gb",
    "NVIDIA GeForce RTX 4090": "rtx 4090",
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA RTX A5000": "a5000",
    "NVIDIA RTX 6000 Ada Generation": "rtx 6000 ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx pro 6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx pro 6000",
    "NVIDIA GeForce RTX 4060 Laptop GPU": "rtx 4060 laptop",
    "NVIDIA GH200 480GB": "gh200",
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
_ALL = tuple(GPUS)


@cache
def find(gpu_name: str | None) -> Chip | None:
    """Return the GPU of a name; None if the name is unknown or can mean several GPUs, as H100 can."""
    words = _words(gpu_name)
    row = DRIVER_NAMES.get(gpu_name or "") or next((name for name in GPUS if words == _words(name)), None)
    return GPUS[row] if row else None


@cache
def bounds_of(gpu_name: str | None) -> Chip:
    """Return the most that a GPU of a name can do, with each assumption in its `source`.

    If the name can mean several GPUs, each figure is the highest among them. The bounds of an unknown GPU are those of
    the fastest GPU that exists, and `known` is False.
    """
    if exact := find(gpu_name):
        return exact
    chips = rows_named(gpu_name)
    if not chips:
        unknown = "of the fastest GPU that exists, as the name says no known one"
        return replace(_most(_ALL, unknown), known=False)
    source = ", ".join(dict.fromkeys(GPUS[name].source for name in chips))
    assumed = f"; taken as the fastest of {', '.join(chips)}" if len(chips) > 1 else ""
    assumed += "; taken as the desktop's" if "laptop" in _words(gpu_name) and "laptop" not in _words(chips[0]) else ""
    return _most(chips, source + assumed)


@cache
def rows_named(gpu_name: str | None) -> tuple[str, ...]:
    """Return the rows of the table that a name can mean, none if it is unknown."""
    words = _words(gpu_name)
    if exact := find(gpu_name):
        return tuple(name for name, chip in GPUS.items() if chip is exact)
    named = [name for name in GPUS if _words(name) & words and _model(name) <= words]
    longest = max((len(_model(name)) for name in named), default=0)
    fitting = [name for name in named if len(_model(name)) == longest]
    closest = [name for name in fitting if _words(name) <= words] or [
        name for name in fitting if _fits(_words(name) - _model(name), words)
    ]
    return tuple(sorted(closest or fitting))


def title(row: str) -> str:
    """Return the name of a row for readers, such as RTX 4070 Ti or A100 SXM4 80GB."""
    kept = {"ti": "Ti", "super": "Super", "laptop": "Laptop", "ada": "Ada", "pcie": "PCIe"}
    return " ".join(kept.get(word, word.upper()) for word in row.split())


def _most(names: Sequence[str], source: str) -> Chip:
    """Return a GPU with the highest of each figure of some GPUs."""
    first = max((GPUS[name] for name in names), key=lambda gpu: (gpu.fp8, gpu.tensor_tflops))
    figures = [field.name for field in fields(Chip)][:8]
    return replace(
        first, **{figure: max(getattr(GPUS[name], figure) for name in names) for figure in figures}, source=source
    )


def _words(name: str | None) -> frozenset[str]:
    split = re.sub(r"(rtx|gtx)(?=\d)", r"\1 ", (name or "").lower().replace("_", " "))
    words = (_SAME_WORD.get(word, word) for word in re.split(r"[\s\-/,()]+", split) if word)
    return frozenset(word for word in words if word not in _MAKERS)


def _model(name: str) -> frozenset[str]:
    """Return the words that name the chip itself; the other words name its board."""
    return frozenset(word for word in _words(name) if word not in ("sxm", "pcie", "nvl", "80gb", "40gb"))


def _fits(board: frozenset[str], words: frozenset[str]) -> bool:
    """Return whether no word of a name contradicts the board."""
    kinds = ({"sxm", "pcie", "nvl"}, {"80gb", "40gb"})
    return all(not (words & kind) or not (board & kind) or words & board & kind for kind in kinds)
