"""What follows from a measurement by arithmetic: FLOPs, bytes, speedup, share of the device's peak, predicted memory.

Nothing here is stored; everything is derived on reading. A missing ingredient gives None, never a guess.
`FLOPS_SQL` is the same formula for use inside a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
MIB = 1024 * 1024

FLOP_SOURCE = (
    "Multiply-adds of the two (forward) or five (backward) matrix products over the unmasked query-key pairs: "
    "forward 4 x batch x heads x pairs x head_dim, backward 2.5 times, both 3.5 times "
    "(FlashAttention-2, arXiv 2307.08691, section 4.1, with the exact number of pairs in place of half of them)."
)
_PRODUCTS = {"fwd": (1, 1), "bwd": (3, 2), "fwd_bwd": (4, 3)}  # products over head_dim, over head_dim_v


def unmasked_pairs(seqlen_q: int, seqlen_k: int, *, causal: bool, window_size: int = 0) -> int:
    """How many query-key pairs the mask leaves, for one head; causal masks are aligned bottom-right."""
    offset = seqlen_k - seqlen_q
    upto = seqlen_k if not causal else offset
    before = -seqlen_q
    if window_size:
        upto = min(upto, offset + window_size - 1)
        before = offset - window_size
    return _keys_up_to(upto, seqlen_q, seqlen_k) - _keys_up_to(before, seqlen_q, seqlen_k)


def attention_flops(case: Mapping[str, object], mode: str | None) -> float | None:
    """Floating-point operations of one call, or None if the case leaves something open. See FLOP_SOURCE."""
    names = ("batch", "num_heads", "seqlen_q", "seqlen_k", "head_dim", "causal", "window_size")
    batch, heads, seqlen_q, seqlen_k, head_dim, causal, window = (_known(case.get(name)) for name in names)
    if mode not in _PRODUCTS or None in (batch, heads, seqlen_q, seqlen_k, head_dim, causal, window):
        return None
    over_head_dim, over_head_dim_v = _PRODUCTS[mode]
    pairs = unmasked_pairs(int(seqlen_q), int(seqlen_k), causal=bool(causal), window_size=int(window))
    width = over_head_dim * head_dim + over_head_dim_v * (_known(case.get("head_dim_v")) or head_dim)
    return 2.0 * batch * heads * pairs * width


def _triangle_sql(n: str) -> str:
    return f"(greatest({n}, 0)::DOUBLE * (greatest({n}, 0) + 1) / 2)"


def _ramp_sql(start: str) -> str:
    return f"({_triangle_sql(f'(seqlen_q - 1 + {start})')} - {_triangle_sql(f'({start} - 1)')})"


def _keys_up_to_sql(shift: str) -> str:
    return f"({_ramp_sql(f'({shift} + 1)')} - {_ramp_sql(f'({shift} + 1 - seqlen_k)')})"


_UPTO_SQL = (
    "least(CASE WHEN causal THEN seqlen_k - seqlen_q ELSE seqlen_k END, "
    "CASE WHEN window_size > 0 THEN seqlen_k - seqlen_q + window_size - 1 ELSE seqlen_k END)"
)
_BEFORE_SQL = "(CASE WHEN window_size > 0 THEN seqlen_k - seqlen_q - window_size ELSE -seqlen_q END)"
FLOPS_SQL = (
    "CASE WHEN causal IS NULL OR window_size IS NULL THEN NULL ELSE "
    f"2.0 * batch * num_heads * ({_keys_up_to_sql(_UPTO_SQL)} - {_keys_up_to_sql(_BEFORE_SQL)}) * ("
    "CASE mode WHEN 'fwd' THEN 1 WHEN 'bwd' THEN 3 WHEN 'fwd_bwd' THEN 4 END * head_dim + "
    "CASE mode WHEN 'fwd' THEN 1 WHEN 'bwd' THEN 2 WHEN 'fwd_bwd' THEN 3 END * coalesce(head_dim_v, head_dim)) END"
)


def tflops(flops: float | None, latency_ms: float | None) -> float | None:
    """10^12 operations per second."""
    return None if not flops or not latency_ms else flops / latency_ms / 1e9


def bytes_moved(case: Mapping[str, object], mode: str | None) -> float | None:
    """The least traffic to device memory: each input read once, each output written once, lse in float32."""
    sizes = tensor_bytes(case)
    if sizes is None or mode not in _PRODUCTS:
        return None
    q, k, v, out, lse = sizes
    forward = q + k + v + out + lse
    backward = (q + k + v + 2 * out + lse) + (q + k + v)  # reads inputs, out, dout, lse; writes dq, dk, dv
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


def gb_per_s(moved: float | None, latency_ms: float | None) -> float | None:
    """10^9 bytes per second."""
    return None if not moved or not latency_ms else moved / latency_ms / 1e6


def tokens(case: Mapping[str, object]) -> float | None:
    """Query tokens that a call works on."""
    batch, seqlen_q = _known(case.get("batch")), _known(case.get("seqlen_q"))
    return None if batch is None or seqlen_q is None else batch * seqlen_q


def time_per_token_us(case: Mapping[str, object], latency_ms: float | None) -> float | None:
    """Microseconds of a call over its query tokens."""
    count = tokens(case)
    return None if not count or not latency_ms else 1e3 * latency_ms / count


def tokens_per_joule(case: Mapping[str, object], energy_j: float | None) -> float | None:
    """Query tokens that a joule serves: one attention operator, not a whole model."""
    count = tokens(case)
    return None if not count or not energy_j else count / energy_j


def joules_per_tflop(case: Mapping[str, object], mode: str | None, energy_j: float | None) -> float | None:
    """Joules for 10^12 useful operations."""
    flops = attention_flops(case, mode)
    return None if not flops or not energy_j else energy_j / flops * 1e12


def speedup(baseline_ms: float | None, latency_ms: float | None) -> float | None:
    """Baseline over implementation: above 1 is faster. None if either has no number."""
    return None if not baseline_ms or not latency_ms else baseline_ms / latency_ms


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean of ratios; None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Peak:
    """What a device can do at most, by its datasheet."""

    tensor_tflops: float  # dense bfloat16 and float16 with float32 accumulation
    tf32_tflops: float  # dense
    float32_tflops: float  # without tensor cores
    bandwidth_gb_per_s: float
    source: str
    fp8: bool = True  # whether the tensor cores multiply 8-bit floats, at twice the 16-bit rate

    @property
    def fp8_tflops(self) -> float | None:
        """Dense."""
        return 2 * self.tensor_tflops if self.fp8 else None


_H200 = "NVIDIA H200 datasheet, SXM; tensor figures halved, as printed with sparsity"
_H100 = "NVIDIA H100 datasheet; tensor figures halved, as printed with sparsity"
_A100 = "NVIDIA A100 datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper, table of GeForce RTX 4090"
# Keyed by the name the driver reports: "H100" alone could be three devices with three peaks.
PEAKS: dict[str, Peak] = {
    "NVIDIA H200": Peak(989.5, 494.5, 67.0, 4800, _H200),
    "NVIDIA H100 80GB HBM3": Peak(989.5, 494.5, 67.0, 3350, _H100 + ", SXM"),
    "NVIDIA H100 NVL": Peak(835.5, 417.5, 60.0, 3900, _H100 + ", NVL"),
    "NVIDIA H100 PCIe": Peak(756.5, 378.0, 51.0, 2000, _H100 + ", PCIe (2022 edition)"),
    "NVIDIA A100-SXM4-80GB": Peak(312.0, 156.0, 19.5, 2039, _A100 + ", 80GB SXM", fp8=False),
    "NVIDIA A100-SXM4-40GB": Peak(312.0, 156.0, 19.5, 1555, _A100 + ", 40GB SXM", fp8=False),
    "NVIDIA A100 80GB PCIe": Peak(312.0, 156.0, 19.5, 1935, _A100 + ", 80GB PCIe", fp8=False),
    "NVIDIA A100-PCIE-40GB": Peak(312.0, 156.0, 19.5, 1555, _A100 + ", 40GB PCIe", fp8=False),
    "NVIDIA GeForce RTX 4090": Peak(165.2, 82.6, 82.6, 1008, _ADA),
}


def peak_tflops(gpu_name: str | None, dtype: str | None, *, tf32: bool | None = None) -> float | None:
    """The device's peak for that dtype; float32 needs to know whether TF32 was used. None if unknown."""
    peak = PEAKS.get(gpu_name or "")
    if peak is None:
        return None
    if dtype in ("bfloat16", "float16"):
        return peak.tensor_tflops
    if dtype == "float8_e4m3fn":
        return peak.fp8_tflops
    if dtype == "float32" and tf32 is not None:
        return peak.tf32_tflops if tf32 else peak.float32_tflops
    return None


def measured_peak_tflops(
    measured: Mapping[str, float] | None, dtype: str | None, *, tf32: bool | None = None
) -> float | None:
    """What a large matrix product of that dtype reached on the machine of the run (Run.measured_tflops); float32 needs
    to know whether TF32 was used. None if it was not measured."""
    if dtype == "float32" and tf32 is None:
        return None
    return (measured or {}).get("tf32" if dtype == "float32" and tf32 else dtype or "")


def percent_of_peak(achieved_tflops: float | None, peak: float | None) -> float | None:
    """Share of the peak in percent."""
    return None if achieved_tflops is None or not peak else 100 * achieved_tflops / peak


# Names whose algorithm is known; of the others (such as a report's plain "torch") no memory is predicted.
MATRIX = ("torch_naive", "torch_sdpa_math", "standard", "naive")
LINEAR = (
    "triton_fa2",
    "triton_fa2_tf32",
    "torch_sdpa_flash",
    "torch_sdpa_cudnn",
    "torch_sdpa_efficient",
    "flash_attn_2",
    "flash_attn_3_fp16",
    "flash_attn_4",
    "torch_flex",
    "gluon_hopper",
    "gluon_fp8",
)
MEMORY_FORMULAS = {
    "matrix": {
        "fwd": "q, k, v, out and two seqlen x seqlen matrices (scores, probabilities) a head",
        "fwd_bwd": "q, k, v, out, their gradients and three seqlen x seqlen matrices (probabilities, dP, dS) a head",
    },
    "linear": {
        "fwd": "q, k, v, out and lse: no matrix",
        "fwd_bwd": "q, k, v, out, lse, their gradients and one float32 row sum a query: no matrix",
    },
}


def memory_kind(implementation: str) -> str | None:
    """Whether memory grows with the square of seqlen ("matrix") or with seqlen ("linear"); None if not known."""
    return "matrix" if implementation in MATRIX else "linear" if implementation in LINEAR else None


def predicted_memory_mb(case: Mapping[str, object], kind: str | None, mode: str | None) -> float | None:
    """Peak memory in MiB by the formula of MEMORY_FORMULAS, or None if the case or the kind leaves something open."""
    sizes = tensor_bytes(case)
    if sizes is None or kind not in MEMORY_FORMULAS or mode not in MEMORY_FORMULAS[kind]:
        return None
    q, k, v, out, lse = sizes
    tensors = q + k + v + out if mode == "fwd" else 2 * (q + k + v + out)
    if kind == "linear":
        return (tensors + lse * (1 if mode == "fwd" else 2)) / MIB
    matrix = case["batch"] * case["num_heads"] * case["seqlen_q"] * case["seqlen_k"] * DTYPE_BYTES[str(case["dtype"])]
    return (tensors + matrix * (2 if mode == "fwd" else 3)) / MIB


def tensor_bytes(case: Mapping[str, object]) -> tuple[float, float, float, float, float] | None:
    """Bytes of q, k, v, out and lse."""
    names = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim = (_known(case.get(name)) for name in names)
    size = DTYPE_BYTES.get(str(case.get("dtype")))
    if None in (batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, size):
        return None
    head_dim_v = _known(case.get("head_dim_v")) or head_dim
    queries, keys = batch * heads * seqlen_q, batch * kv_heads * seqlen_k
    return (
        queries * head_dim * size,
        keys * head_dim * size,
        keys * head_dim_v * size,
        queries * head_dim_v * size,
        queries * 4.0,
    )


def _known(value: object) -> float | None:
    """A number as is; None for None and for a table's NaN."""
    return None if value is None or value != value else value


def _keys_up_to(shift: int, seqlen_q: int, seqlen_k: int) -> int:
    """Pairs (i, j) with 0 <= j <= i + shift, over all queries i."""
    return _ramp(shift + 1, seqlen_q) - _ramp(shift + 1 - seqlen_k, seqlen_q)


def _ramp(start: int, count: int) -> int:
    """The sum of max(0, start + i) for i below count."""
    return _triangle(count - 1 + start) - _triangle(start - 1)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0
