"""cuDNN frontend's inference benchmark (NVIDIA/cudnn-frontend, benchmark/attention_inference/results/**/*.csv).

The phase `generation` is decoding, the phase `context` a forward pass over a prompt. `page_size` applies to the paged
backends only; the cuDNN and FlashAttention backends read a contiguous cache in every row. `tflops` ignores windows and
counts the whole rectangle for several query tokens; `gbps` is 10^9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from results.formats import values
from results.formats.peers.cudnn_training import KERNEL_TIME, SOURCE, TFLOPS, TIME, failed
from results.formats.peers.engine import Number, Peer, at_least_none, positive
from results.formats.peers.sources import Row, only

_PAGED = ("flashinfer", "flash_mla", "b12x")  # backends with pages in generation
_PHASES = {"context": "op", "generation": "decode"}
_KINDS = {"gqa": "attention", "mla_absorbed": "mla"}


def _shared(rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Fill in the mask of each model's prompts, and the GPU and the detail that failed rows leave empty."""
    masks = _masks(rows)
    gpu, detail = only(rows, "gpu_name"), only((r for r in rows if r.text("backend") == "cudnn"), "backend_detail")
    return lambda row: {
        "mask": masks.get(_model(row)),
        "gpu_name": (row.text("gpu_name") or gpu).replace(";", ","),
        "backend_detail": row.text("backend_detail") or (detail if row.text("backend") == "cudnn" else ""),
    }


def _masks(rows: Sequence[Row]) -> dict[tuple[str, str], bool]:
    """Return by model whether its prompts are causal, if the TFLOP/s of its square prompts agree on it."""
    found: dict[tuple[str, str], set[bool]] = {}
    for row in rows:
        if row.text("phase") == "context" and row.text("q_tokens") == row.text("kv_len"):
            try:
                share = _share(row)
            except ValueError:
                continue
            if 0.45 < share < 0.55 or 0.9 < share < 1.1:
                found.setdefault(_model(row), set()).add(share < 0.55)
    return {model: masks.pop() for model, masks in found.items() if len(masks) == 1}


def _share(row: Row) -> float:
    """Return the share of the full rectangle that the printed TFLOP/s count. Raises CellError."""
    full = 2.0 * sum(row.need(name, values.whole) for name in ("head_dim_qk", "head_dim_vo"))
    for name in ("batch_size", "num_q_heads", "q_tokens", "kv_len"):
        full *= row.need(name, values.whole)
    return row.need("tflops", positive) * row.need("time_ms", positive) * 1e9 / full


def _model(row: Row) -> tuple[str, str]:
    return row.text("config_name"), row.text("model_name").partition("-tp")[0]


def _case(row: Row) -> dict[str, Any]:
    level, subject = _PHASES[row.one_of("phase", _PHASES)], _KINDS[row.one_of("kind", _KINDS)]
    paged = level == "decode" and row.text("backend") in _PAGED
    return {
        "level": level,
        "subject": subject,
        "causal": True if level == "decode" else row.value("mask"),
        "page_size": row.read("page_size", at_least_none) if paged else 0,
        "latent_dim": row.need("head_dim_vo", values.whole) if subject == "mla" else 0,
    }


def _implementation(row: Row) -> Iterator[str | None]:
    detail, kv_dtype = row.text("backend_detail"), row.text("kv_cache_dtype")
    yield row.need("backend")
    yield detail.removeprefix("cudnn ").removesuffix(".0") if detail.startswith("cudnn ") else None
    yield f"kv {kv_dtype}" if kv_dtype not in ("", row.text("data_type")) else None


def _config(row: Row) -> dict[str, str | None]:
    detail = row.text("backend_detail")
    return {"config": detail[: values.MAX_TEXT] if " plan=" in detail else None}


PEER = Peer(
    name="cudnn_inference",
    description="the CSV of cuDNN frontend's attention inference benchmark",
    source=SOURCE,
    counted="rows of cuDNN frontend's inference benchmark",
    columns=("phase", "backend", "kv_cache_dtype", "q_tokens", "kv_len", "num_q_heads", "kind", "time_ms", "success"),
    shared=_shared,
    needs={
        "batch": "batch_size",
        "num_heads": "num_q_heads",
        "num_kv_heads": "num_kv_heads",
        "seqlen_q": "q_tokens",
        "seqlen_k": "kv_len",
        "head_dim": "head_dim_qk",
        "head_dim_v": "head_dim_vo",
        "dtype": "data_type",
    },  # fmt: skip
    takes={"window_size": "sliding_window_size"},
    facts={"window_size": 0},
    case=_case,
    implementation=_implementation,
    mode=lambda row: "decode" if row.text("phase") == "generation" else "fwd",
    run=lambda row: {"gpu_name": row.read("gpu_name")},
    extras=_config,
    fails=failed,
    numbers=(TIME, TFLOPS, Number("gb_per_s", ("gbps",), is_rate=True, zero_is_none=True)),
    meanings={
        "implementation": ("backend", "kv_cache_dtype", "backend_detail"),
        "status": ("success", "error_message"),
        "level and mode": ("phase",),
        "subject": ("kind",),
        "page_size of paged backends": ("page_size",),
        "gpu_name": ("gpu_name",),
    },
    assumptions=(
        KERNEL_TIME,
        "The header has no mask. Decoding is causal, aligned bottom-right. A prompt is causal if its printed TFLOP/s "
        "count half of the rectangle, or if those of a prompt of the same model do; otherwise its mask is unknown.",
        f"The backends other than {', '.join(_PAGED)} read a contiguous cache; their page_size is not used.",
    ),
)
