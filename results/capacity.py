"""How much memory an implementation needs for a case, and the longest sequence that fits a GPU: by arithmetic.

The peak of a call is what it is given, what it returns, and what it works in. What it works in is of three kinds: score
matrices (batch x heads x seqlen_q x seqlen_k), a few float32 numbers a query (logsumexp, row sums), and copies or
float32 sums as large as q. How many of each an implementation keeps follows from its algorithm; the counts below are
those that torch's allocator confirms on an H200 to within a tenth (tests/results/test_capacity.py holds the shipped
measurements against them). An implementation that is not listed is not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from results.derive import DTYPE_BYTES, MEMORY_FORMULAS, MIB, memory_kind, predicted_memory_mb, tensor_bytes

LONGEST = 1 << 32  # where the search ends: beyond what any memory of today holds of one head


@dataclass(frozen=True)
class Work:
    """What a pass works in, beside inputs and results."""

    matrices: float = 0.0  # score matrices, in the dtype or in float32
    float32_matrices: bool = False
    numbers: int = 0  # of float32, for each query of each head
    queries_float32: float = 0.0  # tensors like q in float32: sums of dq over blocks of keys
    ring: bool = False  # of these sums, a few heads' at a time, and none where head_dim is above 128
    copies: float = 0.0  # tensors like q in another layout, where there is more than one head to lay out
    grouped_float32: float = 0.0  # dk and dv in float32, where several query heads add to each
    quantised: bool = False  # q, k and v in 8 bits, with a float32 scale for each block of rows


_FLASH = {"fwd": Work(numbers=1), "fwd_bwd": Work(numbers=2, queries_float32=1)}
_OWN_DQ = {"fwd": Work(numbers=1), "fwd_bwd": Work(numbers=2)}  # each gradient summed within a block
WORK: dict[str, dict[str, Work]] = {
    "torch_naive": {"fwd": Work(matrices=2), "fwd_bwd": Work(matrices=4)},
    "torch_sdpa_math": {
        "fwd": Work(matrices=3, float32_matrices=True),
        "fwd_bwd": Work(matrices=4, float32_matrices=True),
    },
    "torch_sdpa_flash": {**_FLASH, "fwd_bwd": Work(numbers=2, queries_float32=1, copies=2)},
    "torch_sdpa_cudnn": _FLASH,
    "torch_sdpa_efficient": {**_FLASH, "fwd_bwd": Work(numbers=2, queries_float32=1, copies=1)},
    "torch_sdpa_auto": _FLASH,
    "triton_fa2": _OWN_DQ,
    "triton_fa2_tf32": _OWN_DQ,
    "gluon_hopper": {**_FLASH, "fwd_bwd": Work(numbers=2, queries_float32=1, ring=True)},
    "torch_flex": {"fwd": Work(numbers=2), "fwd_bwd": Work(numbers=2)},
    "gluon_fp8": {"fwd": Work(quantised=True)},  # has no backward
    "flash_attn_4": {"fwd": Work(numbers=1), "fwd_bwd": Work(numbers=3, queries_float32=1, grouped_float32=1)},
}
_RING_BYTES, _RING_TOKENS = 32 * MIB, 16384  # kernels/attention/gluon_hopper/tuning.py; longer ones mostly need more
_FP8_ROWS = 128  # that share a scale (kernels/attention/gluon_fp8/tuning.py)
_FP8_HEAD_DIMS = (64, 128, 256)  # those between are padded


@dataclass(frozen=True)
class Parts:
    """What a predicted peak is made of, in MiB."""

    given: float  # q, k, v, and with a backward dout
    returned: float  # out, and with a backward the gradients
    matrices: float  # scores and probabilities
    workspace: float  # everything else that the pass works in

    @property
    def peak(self) -> float:
        """All of it."""
        return self.given + self.returned + self.matrices + self.workspace


def peak_memory_mb(case: Mapping[str, object], implementation: str, mode: str) -> float | None:
    """The predicted peak in MiB, inputs and results included; None if the case leaves something open or nothing is
    known of the implementation."""
    found = parts(case, implementation, mode)
    return found and found.peak


def predicted_mb(case: Mapping[str, object], implementation: str, mode: str) -> float | None:
    """The same, and of others than ours and PyTorch's what their algorithm must keep."""
    known = peak_memory_mb(case, implementation, mode)
    return predicted_memory_mb(case, memory_kind(implementation), mode) if known is None else known


def formula(implementation: str, mode: str) -> str | None:
    """What the prediction counts, in words; None if nothing is known of the implementation."""
    work = WORK.get(implementation, {}).get(mode)
    if work is None:
        return MEMORY_FORMULAS.get(memory_kind(implementation) or "", {}).get(mode)
    counted = "q, k, v, out" + (", their gradients" if mode == "fwd_bwd" else "")
    kind = " in float32" if work.float32_matrices else ""
    more = [
        f"{work.matrices:g} seqlen x seqlen matrices{kind} a head" if work.matrices else "no matrix",
        f"{work.numbers} float32 {'number' if work.numbers == 1 else 'numbers'} a query" if work.numbers else "",
        "dq summed in float32" if work.queries_float32 else "",
        "32 MiB of it at a time up to 16384 tokens (8192 where causal at head_dim 128) without a window, none above 128"
        if work.ring
        else "",
        f"{work.copies:g} {'copy' if work.copies == 1 else 'copies'} of q where there are several heads"
        if work.copies
        else "",
        "dk and dv summed in float32 where heads share keys" if work.grouped_float32 else "",
        f"q, k and v in 8 bits with a scale for each {_FP8_ROWS} rows" if work.quantised else "",
    ]
    return ", ".join([counted, *filter(None, more)])


def parts(case: Mapping[str, object], implementation: str, mode: str) -> Parts | None:
    """What the predicted peak is made of; None as for the peak."""
    sizes, work = tensor_bytes(case), WORK.get(implementation, {}).get(mode)
    if sizes is None or work is None:
        return None
    q, k, v, out, lse = sizes
    results = out if mode == "fwd" else out + q + k + v
    given = q + k + v if mode == "fwd" else q + k + v + out
    scores = float(case["batch"]) * case["num_heads"] * case["seqlen_q"] * case["seqlen_k"]
    size = DTYPE_BYTES[str(case["dtype"])]
    matrices = work.matrices * scores * (4 if work.float32_matrices else size)
    workspace = work.numbers * lse + _sums_of_dq(case, work, q)
    workspace += (work.copies * q if case["num_heads"] > 1 else 0.0) + _copies(case, implementation, mode, q)
    workspace += (work.grouped_float32 * (k + v) * 4 / size) if case["num_kv_heads"] < case["num_heads"] else 0.0
    workspace += _quantised(case) if work.quantised else 0.0
    return Parts(given / MIB, results / MIB, matrices / MIB, workspace / MIB)


def largest_seqlen(case: Mapping[str, object], implementation: str, mode: str, memory_mb: float) -> int | None:
    """The longest sequence (queries and keys alike) whose predicted peak fits; 0 if none does, None if not known."""
    if peak_memory_mb(_with_seqlen(case, 1), implementation, mode) is None:
        return None
    fits, too_long = 0, LONGEST + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if peak_memory_mb(_with_seqlen(case, middle), implementation, mode) <= memory_mb:
            fits = middle
        else:
            too_long = middle
    return fits


def kv_cache_mb(case: Mapping[str, object]) -> float | None:
    """Keys and values kept for all tokens so far of one layer, in MiB; of a latent cache the latent alone."""
    sizes = tensor_bytes(case)
    if sizes is None:
        return None
    if latent := case.get("latent_dim"):
        size = DTYPE_BYTES[str(case["dtype"])]
        return float(case["batch"]) * case["seqlen_k"] * latent * size / MIB
    return (sizes[1] + sizes[2]) / MIB


def _copies(case: Mapping[str, object], implementation: str, mode: str, q: float) -> float:
    """What depends on more than the algorithm: float32 in IEEE precision works on transposed copies of k in the forward
    and of q, k, v and dout in the backward."""
    if implementation == "triton_fa2" and case["dtype"] == "float32":
        return q if mode == "fwd" else 4 * q
    return 0.0


def _sums_of_dq(case: Mapping[str, object], work: Work, q: float) -> float:
    """Bytes in which dq is added up in float32; `q` are those of a tensor like q."""
    sums = work.queries_float32 * q * 4 / DTYPE_BYTES[str(case["dtype"])]
    if not work.ring:
        return sums
    if case["head_dim"] > 128:
        return 0.0
    longest = _RING_TOKENS // 2 if case.get("causal") and case["head_dim"] > 64 else _RING_TOKENS
    short = case["seqlen_q"] <= longest and not case.get("window_size")
    return min(sums, _RING_BYTES) if short else sums


def _quantised(case: Mapping[str, object]) -> float:
    """Bytes of q, k and v in e4m3, head_dim padded and the values' rows in whole blocks, and of their scales."""
    size = next((size for size in _FP8_HEAD_DIMS if case["head_dim"] <= size), case["head_dim"])
    q_blocks, k_blocks = (-(-case[name] // _FP8_ROWS) for name in ("seqlen_q", "seqlen_k"))
    queries = case["num_heads"] * (case["seqlen_q"] * size + 4 * q_blocks)
    keys = case["num_kv_heads"] * (case["seqlen_k"] * size + 4 * k_blocks)
    values = case["num_kv_heads"] * (k_blocks * _FP8_ROWS * size + 4 * k_blocks)
    return float(case["batch"]) * (queries + keys + values)


def _with_seqlen(case: Mapping[str, object], seqlen: int) -> dict[str, object]:
    return {**case, "seqlen_q": seqlen, "seqlen_k": seqlen}
