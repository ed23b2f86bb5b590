"""cuDNN frontend's result files; cudnn.toml describes the formats."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from results.formats import values
from results.formats.errors import UploadError
from results.formats.peers.engine import Failure, failure_of, not_finite, peers_of, telling_line, whole_from_0
from results.formats.peers.sources import Entry, Row, only
from results.records import Status

_SOURCE = "cudnn-frontend"
_TIME_COLUMNS = ("time_ms", "fwd_time_ms")  # headers B and C, and header A
_OF_FAILURES = ("gpu_name", "cudnn_version", "cudnn_backend_version")  # columns that failed rows leave empty
_MASKS = ("top_left", "bottom_right", "no_mask")
_PASSES = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd")}


def _failed(row: Row) -> list[Failure]:
    """Return the failure of a row of cuDNN frontend. Raises CellFault for a success without a time."""
    text, message = row.text("time_ms"), row.text("error_message")
    if row.need("success", values.boolean):
        if not_finite(text):
            raise row.fault("time_ms", "is no time, although success is True")
        return []
    status = Status.UNSUPPORTED if row.read("skipped", values.boolean) else failure_of(message)
    return [Failure(TRAINING.numbers[0], status, telling_line(message), text or None)]


def _passes(entry: Entry) -> Iterator[Row]:
    row = entry.value
    if not any(name in row.places for name in _TIME_COLUMNS):
        raise UploadError(f"The file is of cuDNN frontend, but has no column {' or '.join(_TIME_COLUMNS)}.")
    by_pass = "fwd_time_ms" in row.places
    for mode in _PASSES[row.one_of("profile_pass", _PASSES)]:
        yield row.having(f"{mode}_" if by_pass else "", mode=mode)


def _filled(rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Fill in the GPU and the versions of failed rows where all other rows have the same."""
    same = {name: only(rows, name) for name in _OF_FAILURES}
    return lambda row: {name: text for name, text in same.items() if not row.text(name)}


def _version(number: str) -> str:
    """Return cuDNN's version for its number: 9.27 for 92700, 9.19.1 for 91901. Raises CellError."""
    whole = values.whole(number.partition(".")[0], minimum=10_000)
    parts = [whole // 10_000, whole % 10_000 // 100, whole % 100]
    return ".".join(map(str, parts if parts[2] else parts[:2]))


def _training_run(row: Row) -> dict[str, str | None]:
    cudnn = row.read("cudnn_backend_version", _version)
    return {"title": f"cuDNN {cudnn}" if cudnn else "", "gpu_name": row.read("gpu_name"), "cudnn": cudnn}


def _mask(row: Row) -> dict[str, bool]:
    mask = row.one_of("attn_mask", _MASKS)
    if mask == "top_left" and row.text("q_seqlen") != row.text("kv_seqlen"):
        raise row.fault("attn_mask", "is aligned top-left, but causal masks here are bottom-right: lengths differ")
    return {"causal": mask != "no_mask"}


def _training_name(row: Row) -> Iterator[str | None]:
    backend = row.need("backend")
    yield backend
    if backend == "cudnn":
        yield row.read("cudnn_backend_version", _version)
    elif backend == "cudnn_oss":
        yield row.read("cudnn_version")
    yield "mxfp8" if row.text("data_type") == "mxfp8" else None
    yield "deterministic" if row.text("mode") == "bwd" and row.read("deterministic_bwd", values.boolean) else None


_PAGED = ("flashinfer", "flash_mla", "b12x")  # backends with pages in generation
_PHASES = {"context": "op", "generation": "decode"}
_KINDS = {"gqa": "attention", "mla_absorbed": "mla"}


def _with_masks(rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Fill in the mask of each model's prompts, and the GPU and the detail that failed rows leave empty."""
    masks = _masks_of(rows)
    gpu, detail = only(rows, "gpu_name"), only((r for r in rows if r.text("backend") == "cudnn"), "backend_detail")

    def more(row: Row) -> dict[str, Any]:
        said = row.text("backend_detail") or (detail if row.text("backend") == "cudnn" else "")
        version = said.removeprefix("cudnn ").removesuffix(".0") if said.startswith("cudnn ") else ""
        name = (row.text("gpu_name") or gpu).replace(";", ",")
        found = {"mask": masks.get(_model(row)), "gpu_name": name, "backend_detail": said, "version": version}
        return found | {"config": said[: values.MAX_TEXT] if " plan=" in said else None}

    return more


def _masks_of(rows: Sequence[Row]) -> dict[tuple[str, str], bool]:
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
    return row.need("tflops", values.positive) * row.need("time_ms", values.positive) * 1e9 / full


def _model(row: Row) -> tuple[str, str]:
    return row.text("config_name"), row.text("model_name").partition("-tp")[0]


def _inference_case(row: Row) -> dict[str, Any]:
    level, subject = _PHASES[row.one_of("phase", _PHASES)], _KINDS[row.one_of("kind", _KINDS)]
    paged = level == "decode" and row.text("backend") in _PAGED
    return {
        "level": level,
        "subject": subject,
        "causal": True if level == "decode" else row.value("mask"),
        "page_size": row.read("page_size", whole_from_0) if paged else 0,
        "latent_dim": row.need("head_dim_vo", values.whole) if subject == "mla" else 0,
    }


def _baseline(entry: Entry) -> Iterator[Row]:
    """Add the baseline, and drop the speedup of the baseline itself."""
    row = entry.value
    backend, label = row.text("backend"), row.text("speedup_label")
    system, _, baseline = label.partition(" vs ")
    if row.text("speedup") and (system != backend or not baseline):
        raise row.fault("speedup_label", "does not name the backend and the backend it is compared with")
    own = baseline == system
    yield row.having(baseline=f"{baseline} ({_SOURCE})", speedup=None if own else row.text("speedup"))


TRAINING, INFERENCE, LLAMA = peers_of(__file__, globals())
