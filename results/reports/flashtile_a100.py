"""Answers to the claims of report flashtile_a100, and its tables of words."""

from collections.abc import Mapping, Sequence
from itertools import product

from results.checks.memory import SHARED_KB
from results.levels.tensors import kv_cache_mb
from results.records import Measurement, attention_case, case_to_json
from results.reports.claims import Pick, growths, words_table
from results.reports.layout import Section, TableRow, shipped_notes
from results.reports.own import OwnNumbers

NAME = "flashtile_a100"
_MHA = {"subject": "mha_fused_bias", "num_kv_heads": 12}


def cache_savings(numbers: OwnNumbers) -> str | None:
    """Return by formula how much smaller the cache of the report's GQA is: 2 key heads for 8 query heads."""
    case = attention_case(batch=1, num_heads=8, seqlen=1024, head_dim=64, dtype="float32", causal=True)
    whole, fewer = (kv_cache_mb(case_to_json(case) | {"num_kv_heads": heads}) for heads in (8, 2))
    return f"{whole / fewer:.1f}x, by formula" if numbers.measurements else None


def _forward(name: str, metric: str) -> Pick:
    """Return a number of a layer's forward; its baseline is always the naive multi-head layer, as in the report."""
    case = {"subject": "gqa_bias" if name == "flashtile_gqa" else "mha_fused_bias"}
    return Pick(name, "naive", metric, "fwd", case=case, baseline_case=_MHA)


def _speed(numbers: OwnNumbers, pick: Pick) -> str | None:
    """Return the speed over the naive layer at the longest sequence that both have."""
    ratios = {case.seqlen_k or 0: ratio for case, ratio in pick.ratios(numbers)}
    if pick.implementation == pick.baseline or not ratios:
        return None
    return f"{pick.name(numbers)} {ratios[max(ratios)]:.3g}x naive at {max(ratios):,}"


def _backward(name: str, numbers: OwnNumbers) -> str | None:
    """Return whether an implementation ran a backward, or what it declares."""
    own = numbers.own(name)
    if any(m.implementation == own and m.mode in ("bwd", "fwd_bwd") and m.value for m in numbers.measurements):
        return f"{own} ran"
    declares = numbers.declared.get(own, {}).get("backward")
    return None if declares is None else f"{own} {'declared' if declares else 'none'}"


def _all(names: Sequence[str], aspect: str, numbers: OwnNumbers) -> str:
    """Join the answers of several implementations for an aspect: Memory, Speed or Backward."""
    if aspect == "Backward":
        found = [_backward(name, numbers) for name in names]
    elif aspect == "Speed":
        found = [_speed(numbers, _forward(name, "latency_ms")) for name in names]
    else:
        found = [growths(numbers, [_forward(name, "peak_memory_mb")], "{} {}") for name in names]
    return ", ".join(filter(None, found))


def all_memory(numbers: OwnNumbers) -> str | None:
    """Return how the memory of each version grows."""
    of_gqa = _all(("flashtile_gqa",), "Memory", numbers)
    return "; ".join(filter(None, [_all(_TILED, "Memory", numbers), of_gqa and f"GQA: {of_gqa}"])) or None


def all_speed(numbers: OwnNumbers) -> str | None:
    """Return the speed of each version over the naive layer."""
    return _all((*_TILED, "flashtile_triton"), "Speed", numbers) or None


_TILED = ("flashtile_v1", "flashtile_v2")

_ROWS: Mapping[str, tuple[str, ...]] = {  # row of the table of implementations -> implementations
    "Flash V1/V2": _TILED,
    "GQA/MQA": ("flashtile_gqa",),
    "Triton Kernel": ("flashtile_triton",),
    "PyTorch SDPA": ("torch_sdpa_auto",),
    "Naive": ("naive",),
}
_COLUMNS = {"FlashTile Python": _TILED, "PyTorch SDPA": ("torch_sdpa_auto",), "Triton Kernel": ("flashtile_triton",)}
_ASPECTS = ("Memory", "Speed", "Backward")  # the rows that numbers answer; the other rows are judgments


def more_sections(printed: Sequence[Measurement], numbers: OwnNumbers) -> list[Section]:
    """Return the report's two tables of words with our answers, and the shared memory of a block by formula."""
    blocks = {m.case.subject: m.printed or "" for m in printed if m.metric == "shared_memory_kb"}
    found = []
    for note in shipped_notes(NAME) if printed else ():
        if note.header[:1] == ("Implementation",):
            of_row = lambda row, aspect: _all(_ROWS[row], aspect, numbers)  # noqa: E731
            found.append(words_table(note, "Implementations", of_row, _ASPECTS[:2]))
        elif note.header[:1] == ("Aspect",):
            of_column = lambda aspect, column: _all(_COLUMNS[column], aspect, numbers)  # noqa: E731
            found.append(words_table(note, "Aspects", of_column, only=_ASPECTS))
    return [*found, _shared_memory(blocks)] if blocks else found


def _shared_memory(printed: Mapping[str, str]) -> Section:
    """Return the memory of q, k, v, out and scores of a block in float32, and the GPUs that have as much.

    `printed` maps the subject of the report's rows to the printed cell.
    """
    rows = []
    for block, head_dim in product((32, 64, 128), (64, 128)):
        needed = (4 * block * head_dim + block**2) * 4 / 1024
        fits = [f"{name} ({limit} KiB)" for name, limit in SHARED_KB.items() if needed <= limit]
        own = f"{needed:g} KiB; fits {', '.join(fits) or 'none'}"
        rows.append(TableRow((str(block), str(head_dim)), (printed.get(f"block_size {block}", ""),), (own,)))
    title = "Shared memory: by formula, (4 x block x head_dim + block x block) x 4 bytes, and where it fits"
    labels = ("Block Size", "head_dim")
    return Section(title, "", labels, ("SRAM Required",), (None,), tuple(rows), by_formula=True)
