"""FlashTile: tiled attention in plain PyTorch and a Triton forward against a naive layer on an A100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from results.checks.memory import SHARED_KB
from results.levels.tensors import kv_cache_mb
from results.records import Measurement, attention_case, case_to_json
from results.reports.claims import Answer, Claim, Pick, ends, growths, largest, span_by_dtype
from results.reports.layout import Facts, Grid, Labels, Remark, Row, Section
from results.reports.notes import shipped_notes
from results.reports.own import OwnNumbers

NAME = "flashtile_a100"
LABEL = "FlashTile, A100 80 GB"
TITLE = "FlashTile performance on an A100"
SOURCE = "FlashTile, docs/PERFORMANCE.md, https://github.com/iamrahulreddy/FlashTile"
IMPLEMENTATIONS = {
    "naive": "torch_naive",
    "flashtile_v1": "tiled_v1",
    "flashtile_v2": "tiled_v2",
    "flashtile_gqa": "tiled_v2",  # the same code with fewer key heads
    "flashtile_triton": "triton_fa2",
}

_SYSTEMS = {
    "Naive": "naive",
    "Flash V1": "flashtile_v1",
    "Flash V2": "flashtile_v2",
    "GQA": "flashtile_gqa",
    "Triton": "flashtile_triton",
}
_LAYER: dict[str, Any] = {
    "level": "layer",
    "batch": 4,
    "num_heads": 12,
    "head_dim": 64,  # embed-dim 768 over 12 heads
    "causal": True,
    "mode": "fwd",
}
_MHA = {"subject": "mha_fused_bias", "num_kv_heads": 12}
_GQA = {"subject": "gqa_bias", "num_kv_heads": 3}


def _row(labels: Labels) -> Facts:
    return {"seqlen": int(labels[0].replace(",", ""))}


def _name(measurement: Measurement) -> Labels:
    return (f"{measurement.case.seqlen_q or 0:,}",)


def _block(labels: Labels) -> Facts:
    return {"subject": f"block_size {labels[0]}"}


def _layer_of(implementation: str) -> dict[str, Any]:
    """Return the layer by FlashTile's code: biases in the projections, 3 key heads in GQA."""
    return _GQA if implementation == "flashtile_gqa" else _MHA


def _columns(suffix: str, **facts: str) -> dict[str, Any]:
    return {
        f"{title}{suffix}": {"implementation": name, **_layer_of(name), **facts} for title, name in _SYSTEMS.items()
    }


_TRITON_SPEEDUP = {**_LAYER, **_MHA, "implementation": "flashtile_triton", "baseline": "naive", "metric": "speedup"}
GRIDS = (
    *(
        Grid(
            section=section,
            header=("Sequence Length", *columns),
            row=_row,
            name=_name,
            columns=columns,
            facts=_LAYER,
            measured_by=("flashtile", {"subject": "subject", "seqlen": "seqlen"}),
        )
        for section, columns in (
            ("Memory", _columns(" Memory", metric="peak_memory_mb")),
            ("Time", _columns("", metric="latency_ms", format="{:.2f} ms")),
            ("Triton speedup", {"Speedup": _TRITON_SPEEDUP}),
        )
    ),
    Grid(
        section="Shared memory",
        header=("Block Size", "SRAM Required", "Best For"),
        row=_block,
        rows=(("32",), ("64",), ("128",)),
        columns={
            "SRAM Required": {"implementation": "flashtile", "metric": "shared_memory_kb", "level": None},
            "Best For": Remark(),
        },
    ),
)


def _cache_savings(numbers: OwnNumbers) -> str | None:
    """Return by formula how much smaller the cache of the report's GQA is: 2 key heads for 8 query heads."""
    sizes = {"batch": 1, "num_heads": 8, "seqlen": 1024, "head_dim": 64, "dtype": "float32", "causal": True}
    whole, fewer = (kv_cache_mb(case_to_json(attention_case(**sizes, num_kv_heads=heads))) for heads in (8, 2))
    return f"{whole / fewer:.1f}x, by formula" if numbers.measurements else None


def _forward(name: str, metric: str, *, gqa: bool = False) -> Pick:
    """Return a number of a layer's forward; its baseline is always the naive multi-head layer, as in the report."""
    case = {"subject": (_GQA if gqa else _MHA)["subject"]}
    return Pick(name, "naive", metric, "fwd", case=case, baseline_case=_MHA)


def _speed(pick: Pick) -> Answer:
    """Answer with the speed over the naive layer at the longest sequence that both have."""

    def answer(numbers: OwnNumbers) -> str | None:
        ratios = {case.seqlen_k or 0: ratio for case, ratio in pick.ratios(numbers)}
        if pick.implementation == pick.baseline or not ratios:
            return None
        return f"{pick.name(numbers)} {ratios[max(ratios)]:.3g}x naive at {max(ratios):,}"

    return answer


def _memory(pick: Pick) -> Answer:
    return growths([pick], "{} {}")


def _backward(name: str, numbers: OwnNumbers) -> str | None:
    """Return whether an implementation ran a backward, or what it declares."""
    own = numbers.own(name)
    if any(m.implementation == own and m.mode in ("bwd", "fwd_bwd") and m.value for m in numbers.measurements):
        return f"{own} ran"
    declares = numbers.declared.get(own, {}).get("backward")
    return None if declares is None else f"{own} {'declared' if declares else 'none'}"


def _all(names: Sequence[str], aspect: str, numbers: OwnNumbers, *, gqa: bool = False) -> str:
    """Join the answers of several implementations for an aspect: Memory, Speed or Backward."""
    kinds = {"Memory": (_memory, "peak_memory_mb"), "Speed": (_speed, "latency_ms")}
    if aspect == "Backward":
        found = [_backward(name, numbers) for name in names]
    else:
        answer, metric = kinds[aspect]
        found = [answer(_forward(name, metric, gqa=gqa))(numbers) for name in names]
    return ", ".join(filter(None, found))


def _all_memory(numbers: OwnNumbers) -> str | None:
    of_gqa = _all(("flashtile_gqa",), "Memory", numbers, gqa=True)
    return "; ".join(filter(None, [_all(_TILED, "Memory", numbers), of_gqa and f"GQA: {of_gqa}"])) or None


def _all_speed(numbers: OwnNumbers) -> str | None:
    return _all((*_TILED, "flashtile_triton"), "Speed", numbers) or None


def _at_8k(metric: str, name: str) -> Answer:
    case = {"level": "layer", "head_dim": 64, "subject": _layer_of(name)["subject"]}
    return span_by_dtype(metric, name, "naive", mode="fwd", seqlen=(8192, 8192), case=case)


_TILED = ("flashtile_v1", "flashtile_v2")
CLAIMS = (
    *(
        Claim(f"Memory reduction at 8K vs Naive / {title}", _at_8k("memory_reduction", name))
        for title, name in _SYSTEMS.items()
        if name != "naive"
    ),
    Claim("Implementation / Triton Kernel / Speed", _at_8k("speedup", "flashtile_triton")),
    Claim("Aspect / Speed / Triton Kernel", _at_8k("speedup", "flashtile_triton")),
    Claim("Correctness", largest("max_error_out", mode="fwd", case={"level": "layer"})),
    Claim("GroupedQueryAttention(512, 8, num_kv_heads=2)", _cache_savings),
    Claim("Takeaways / Memory", _all_memory, "V1, V2 and GQA stay at O(N) peak memory"),
    Claim("Takeaways / Speed", _all_speed, "Only the Triton kernel is faster than naive"),
    Claim(
        "Takeaways / Scaling",
        ends(_forward("flashtile_v2", "peak_memory_mb"), form=".3g", named=True),
        "Memory reduction grows linearly with sequence length",
    ),
    Claim(
        "Takeaways / Triton",
        ends(_forward("flashtile_triton", "latency_ms"), form=".3g", named=True),
        "Speedup grows with sequence length",
    ),
)

_ROWS: Mapping[str, tuple[str, ...]] = {  # row of the table of implementations -> implementations
    "Flash V1/V2": _TILED,
    "GQA/MQA": ("flashtile_gqa",),
    "Triton Kernel": ("flashtile_triton",),
    "PyTorch SDPA": ("torch_sdpa_auto",),
    "Naive": ("naive",),
}
_COLUMNS = {
    "FlashTile Python": _TILED,
    "PyTorch SDPA": ("torch_sdpa_auto",),
    "Triton Kernel": ("flashtile_triton",),
}
_ASPECTS = ("Memory", "Speed", "Backward")  # the rows that numbers answer; the other rows are judgments


def more_sections(printed: Sequence[Measurement], numbers: OwnNumbers) -> list[Section]:
    """Return the report's two tables of words with our answers, and the shared memory of a block by formula."""
    blocks = {m.case.subject: m.printed or "" for m in printed if m.metric == "shared_memory_kb"}
    found = []
    for note in shipped_notes(NAME) if printed else ():
        if note.header[:1] == ("Implementation",):
            rows = tuple(_implementation(row, numbers) for row in note.rows)
            found.append(Section("Implementations", "", note.header[:1], _ASPECTS[:2], (None, None), rows))
        elif note.header[:1] == ("Aspect",):
            rows = tuple(_aspect(row, note.header[1:], numbers) for row in note.rows if row[0] in _ASPECTS)
            metrics = (None,) * len(note.header[1:])
            found.append(Section("Aspects", "", note.header[:1], note.header[1:], metrics, rows))
    return [*found, _shared_memory(blocks)] if blocks else found


def _implementation(row: Sequence[str], numbers: OwnNumbers) -> Row:
    own = tuple(_all(_ROWS[row[0]], aspect, numbers, gqa=row[0] == "GQA/MQA") for aspect in _ASPECTS[:2])
    return Row((row[0],), tuple(row[1:3]), own if any(own) else None)


def _aspect(row: Sequence[str], columns: Sequence[str], numbers: OwnNumbers) -> Row:
    own = tuple(_all(_COLUMNS[column], row[0], numbers) for column in columns)
    return Row((row[0],), tuple(row[1:]), own if any(own) else None)


def _shared_memory(printed: Mapping[str, str]) -> Section:
    """Return the memory of q, k, v, out and scores of a block in float32, and the GPUs that have as much.

    `printed` maps the subject of the report's rows to the printed cell.
    """
    rows = []
    for block, head_dim in product((32, 64, 128), (64, 128)):
        needed = (4 * block * head_dim + block**2) * 4 / 1024
        fits = [f"{name} ({limit} KiB)" for name, limit in SHARED_KB.items() if needed <= limit]
        own = f"{needed:g} KiB; fits {', '.join(fits) or 'none'}"
        rows.append(Row((str(block), str(head_dim)), (printed.get(f"block_size {block}", ""),), (own,)))
    title = "Shared memory: by formula, (4 x block x head_dim + block x block) x 4 bytes, and where it fits"
    labels = ("Block Size", "head_dim")
    return Section(title, "", labels, ("SRAM Required",), (None,), tuple(rows), by_formula=True)
