"""What report flashtile_a100 says in words, beside what own numbers say: what each implementation is for, takeaways."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from results.reports.claims import growth
from results.reports.layout import Row, Section
from results.reports.notes import Note
from results.reports.own import OwnNumbers

_NAIVE, _SDPA, _TRITON = "naive", "torch_sdpa_auto", "flashtile_triton"
_TILED = ("flashtile_v1", "flashtile_v2")
_GQA, _MHA = "gqa_bias", "mha_fused_bias"
_ROWS: Mapping[str, tuple[tuple[str, ...], str]] = {  # of the table of implementations: names, layer
    "Flash V1/V2": (_TILED, _MHA),
    "GQA/MQA": (("flashtile_gqa",), _GQA),
    "Triton Kernel": ((_TRITON,), _MHA),
    "PyTorch SDPA": ((_SDPA,), _MHA),
    "Naive": ((_NAIVE,), _MHA),
}
_COLUMNS = {"FlashTile Python": _TILED, "PyTorch SDPA": (_SDPA,), "Triton Kernel": (_TRITON,)}
_SAID = ("Memory", "Speed")  # what numbers answer; the other columns and rows are judgements


def tables(notes: Sequence[Note], numbers: OwnNumbers) -> list[Section]:
    """Return the report's two tables of words, each cell that numbers answer beside what own ones say."""
    found = []
    for note in notes:
        if note.header[:1] == ("Implementation",):
            rows = tuple(_implementation(row, numbers) for row in note.rows)
            found.append(Section("Implementations", "", note.header[:1], _SAID, (None, None), rows))
        elif note.header[:1] == ("Aspect",):
            rows = tuple(_aspect(row, note.header[1:], numbers) for row in note.rows if row[0] in _ASPECTS)
            words = (None,) * len(note.header[1:])
            found.append(Section("Aspects", "", note.header[:1], note.header[1:], words, rows))
    return found


def sentences(numbers: OwnNumbers) -> tuple[tuple[str, str, str | None], ...]:
    """Return the report's takeaways: where each stands, its words, what own numbers say."""
    said = (
        ("Memory", "V1, V2 and GQA stay at O(N) peak memory", _memory_of_all),
        ("Speed", "Only the Triton kernel is faster than naive", _speed_of_all),
        ("Scaling", "Memory reduction grows linearly with sequence length", _reduction),
        ("Triton", "Speedup grows with sequence length", _gain),
    )
    return tuple((f"Takeaways / {where}", words, answer(numbers)) for where, words, answer in said)


def _implementation(row: Sequence[str], numbers: OwnNumbers) -> Row:
    names, subject = _ROWS[row[0]]
    own = (_joined(_memory, names, subject, numbers), _joined(_speed, names, subject, numbers))
    return Row((row[0],), tuple(row[1:3]), own if any(own) else None)


def _aspect(row: Sequence[str], columns: Sequence[str], numbers: OwnNumbers) -> Row:
    own = tuple(_joined(_ASPECTS[row[0]], _COLUMNS[column], _MHA, numbers) for column in columns)
    return Row((row[0],), tuple(row[1:]), own if any(own) else None)


_Answer = Callable[[str, str, OwnNumbers], str | None]


def _joined(answer: _Answer, names: Sequence[str], subject: str, numbers: OwnNumbers) -> str:
    said = {numbers.own(name): answer(name, subject, numbers) for name in names}
    return ", ".join(f"{name} {words}" for name, words in said.items() if words)


def _memory(name: str, subject: str, numbers: OwnNumbers) -> str | None:
    return growth(numbers, numbers.own(name), "peak_memory_mb", "fwd", subject)


def _speed(name: str, subject: str, numbers: OwnNumbers) -> str | None:
    """Say the speed over the naive layer at the longest sequence that both have."""
    ratios = _over_naive(name, "latency_ms", subject, numbers)
    if name == _NAIVE or not ratios:
        return None
    longest = max(ratios)
    return f"{ratios[longest]:.3g}x naive at {longest:,}"


def _backward(name: str, subject: str, numbers: OwnNumbers) -> str | None:
    own = numbers.own(name)
    if any(m.implementation == own and m.mode in ("bwd", "fwd_bwd") and m.value for m in numbers.measurements):
        return "ran"
    declares = numbers.declared.get(own, {}).get("backward")
    return None if declares is None else "declared" if declares else "none"


def _over_naive(name: str, metric: str, subject: str, numbers: OwnNumbers) -> dict[int, float]:
    """Return by sequence length the naive layer's number over that of an implementation.

    Where the layer has fewer key heads, it is compared with the naive multi-head layer, as in the report.
    """
    base, own = numbers.own(_NAIVE), numbers.own(name)
    naive = {
        m.case.seqlen_k: m.value
        for m in numbers.measurements
        if m.value and (m.implementation, m.metric, m.mode, m.case.subject) == (base, metric, "fwd", _MHA)
    }
    return {
        m.case.seqlen_k or 0: naive[m.case.seqlen_k] / m.value
        for m in numbers.measurements
        if m.value and (m.implementation, m.metric, m.mode, m.case.subject) == (own, metric, "fwd", subject)
        if naive.get(m.case.seqlen_k)
    }


def _memory_of_all(numbers: OwnNumbers) -> str | None:
    of_gqa = _joined(_memory, ("flashtile_gqa",), _GQA, numbers)
    parts = [_joined(_memory, _TILED, _MHA, numbers), of_gqa and f"GQA: {of_gqa}"]
    return "; ".join(part for part in parts if part) or None


def _speed_of_all(numbers: OwnNumbers) -> str | None:
    return _joined(_speed, (*_TILED, _TRITON), _MHA, numbers) or None


def _reduction(numbers: OwnNumbers) -> str | None:
    return _ends("flashtile_v2", "peak_memory_mb", numbers)


def _gain(numbers: OwnNumbers) -> str | None:
    return _ends(_TRITON, "latency_ms", numbers)


def _ends(name: str, metric: str, numbers: OwnNumbers) -> str | None:
    """Say a ratio at the shortest and the longest sequence, and how it grows."""
    ratios = _over_naive(name, metric, _MHA, numbers)
    if len(ratios) < 2:
        return None
    short, long = min(ratios), max(ratios)
    exponent = math.log(ratios[long] / ratios[short]) / math.log(long / short)
    ends = f"{ratios[short]:.3g}x at {short:,} to {ratios[long]:.3g}x at {long:,}"
    return f"{numbers.own(name)}: {ends}, grows as N^{exponent:.1f}"


_ASPECTS: Mapping[str, _Answer] = {"Memory": _memory, "Speed": _speed, "Backward": _backward}
