"""The table of GPUs for the checks, the shares of peak and the memory calculator, from data sheets.

What a GPU reached in practice is not here: each run records the matrix product and the copy that it measured
(`Run.measured_tflops`, `Run.measured_gbs`). To add a GPU, add a table to gpus.toml, and its name in
[names] if the driver reports more words than the name of the table has.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from results.paths import toml_of

# Bytes of shared memory that one thread block can use (CUDA C++ Programming Guide, table of compute capabilities;
# for AMD the LDS of a compute unit, from the CDNA ISA documents), in KiB by compute capability.
_SHARED_KB = {"7.0": 96, "7.5": 64, "8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "12.0": 99}
_SHARED_KB |= {"gfx90a": 64, "gfx942": 64, "gfx950": 160}
_WITH_FP8 = ("8.9", "9.0", "10.0", "10.3", "12.0", "gfx942", "gfx950")


@dataclass(frozen=True)
class DataSheet:
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


_DECLARED = toml_of(__file__)
GPUS = {name: DataSheet(**{"sm_count": None, **figures}) for name, figures in _DECLARED["gpus"].items()}
DRIVER_NAMES: dict[str, str] = _DECLARED["names"]
_MAKERS = {"nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "gpu", "hbm2", "hbm2e", "hbm3", "hbm3e"}
_SAME_WORD = dict.fromkeys(("sxm2", "sxm4", "sxm5"), "sxm")
_SAME_WORD |= {"80g": "80gb", "40g": "40gb", "pci": "pcie", "mobile": "laptop"}
_ALL = tuple(GPUS)


@cache
def find(gpu_name: str | None) -> DataSheet | None:
    """Return the GPU of a name; None if the name is unknown or can mean several GPUs, as H100 can."""
    words = _words(gpu_name)
    row = DRIVER_NAMES.get(gpu_name or "") or next((name for name in GPUS if words == _words(name)), None)
    return GPUS[row] if row else None


@cache
def bounds_of(gpu_name: str | None) -> DataSheet:
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


def _most(names: Sequence[str], source: str) -> DataSheet:
    """Return a GPU with the highest of each figure of some GPUs."""
    first = max((GPUS[name] for name in names), key=lambda gpu: (gpu.fp8, gpu.tensor_tflops))
    figures = [field.name for field in fields(DataSheet)][:8]
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
