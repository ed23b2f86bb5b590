"""What FlashAttention's benchmark scripts print, as text (Dao-AILab/flash-attention, benchmarks/, hopper/).

Two layouts. Blocks begin with a line `### causal=False, headdim=64, batch_size=32, seqlen=512 ###` and have one line a
method: `Flash2 fwd: 84.08 TFLOPs/s, bwd: ...` or `Fav3 fwd: 0.545ms, 126.2 TFLOPS`. Tables begin with a line
`FWD (ms / TFLOPS / MFU% / TBs / BW%)` and have one column a method. A method that failed or did not run prints 0.00.
Neither layout names the GPU or the dtype; heads only stand in the newest blocks and in the log lines before a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.formats.peers.collected import CellFault, Collected, positive
from results.formats.tables import MAX_BYTES, MAX_ROWS, decode
from results.formats.upload import Understanding, Upload
from results.records import Case, Status

NAME = "flash_attention"
DESCRIPTION = "what FlashAttention's benchmark scripts print"
SOURCE = "flash-attention"
MODES = {"fwd": "fwd", "bwd": "bwd", "fwd + bwd": "fwd_bwd", "fwdbwd": "fwd_bwd"}
MAX_LINE = 2000

_BLOCK = re.compile(r"^\W*### (?P<said>[^#]*\bseqlen *=[^#]*) ###\W*$")
_ZERO = re.compile(r"0+(?:\.0*)?")
_METHOD = re.compile(r"^(?P<name>[^:]{1,80}?)(?P<rest>(?: (?:fwd \+ bwd|fwd|bwd))?:.*TFLOP.*)$")
_PASS = re.compile(r"(fwd \+ bwd|fwd|bwd):")
_RATE = re.compile(r"(\S+) *TFLOP[sS](?:/s)?\b")
_TIME = re.compile(r"([^\s,:]+?) *ms\b")
_TABLE = re.compile(r"^\W*(?P<mode>FWD|BWD) \(ms / TFLOPS.*\)\W*$")
_HEADS = re.compile(r"Benchmarking .{1,200}?\bhdim=(\d+), .{0,300}?\bnheads=(\d+), nheads_kv=(\d+)")
_SHAPE = ("hdim", "causal", "batch", "seqlen", "seqlen_q", "seqlen_kv", "gather_kv")  # columns of a table's left side
_ASSUMED = (
    "Every number is of attention alone (level op). The printed lines name no dtype.",
    "seqlen is the length of queries and of keys.",
    "0.00 stands for a method that failed or did not run: skipped if it never ran, else an error of unknown cause.",
)


def reason_against(upload: Upload) -> str | None:
    """Return None if the text has such lines, nothing to say otherwise."""
    data = upload.data
    if upload.kind != "text" or len(data) > MAX_BYTES or b"TFLOP" not in data:
        return ""
    if b"###" not in data and b"(ms / TFLOPS" not in data:
        return ""
    try:
        lines = _lines(decode(data))
    except UploadError:
        return ""
    return None if any(_BLOCK.match(line) or _TABLE.match(line) for _, line in lines) else ""


def understand(upload: Upload) -> Understanding:
    """Return the printed rates and times; lines that are neither a block nor a table are passed over."""
    lines = list(_lines(decode(upload.data)))
    if len(lines) > MAX_ROWS:
        raise UploadError(f"{upload.filename} has {len(lines):,} lines; at most {MAX_ROWS:,} are taken. Split it.")
    collected = Collected(upload, NAME)
    heads = {int(found[1]): (found[2], found[3]) for _, line in lines if (found := _HEADS.search(line))}
    ran = {name for name, rate in _methods(lines) if not _ZERO.fullmatch(rate)}
    block: dict[str, str] = {}
    table: _PrintedTable | None = None
    for number, line in lines:
        if found := _BLOCK.match(line):
            parts = (part.partition("=") for part in found["said"].split(","))
            block, table = {name.strip(): text.strip().strip("'") for name, _, text in parts}, None
        elif found := _TABLE.match(line):
            block, table = {}, _PrintedTable(found["mode"].lower(), heads)
        elif table is not None:
            with collected.row(number, line):
                table.read(collected, number, line)
        elif block and "TFLOP" in line:
            with collected.row(number, line):
                _line(collected, number, line, block, ran)
    return collected.understanding(f"{len(lines):,} lines that FlashAttention printed", assumptions=_ASSUMED)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line.rstrip()[:MAX_LINE]) for number, line in enumerate(text.split("\n"), start=1))


def _methods(lines: list[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Yield the method and the TFLOP/s of every pass of every line of a method."""
    for _, line in lines:
        if found := _METHOD.match(line):
            for _, rate, _ in _parts(found["rest"]):
                yield found["name"].strip(" -*`|"), rate


def _parts(rest: str) -> Iterator[tuple[str, str, str]]:
    pieces = _PASS.split(rest)
    pairs = list(zip(pieces[1::2], pieces[2::2], strict=True)) or [("", rest)]
    for mode, text in pairs:
        rate, time = _RATE.search(text), _TIME.search(text)
        yield mode, rate[1] if rate else "", time[1] if time else ""


def _line(collected: Collected, number: int, line: str, block: dict[str, str], ran: set[str]) -> None:
    """Take the passes of one method of a block."""
    found = _METHOD.match(line)
    if found is None:
        raise CellError("has TFLOP/s, but no method before a colon")
    name = values.words(found["name"].strip(" -*`|"))
    if not name or name in MODES:
        raise CellError("names no method")
    case = _case(block)
    varlen = " varlen" if block.get("varlen") == "True" else ""
    known: dict[str, Any] = {
        "run_id": collected.run(None), "case": case, "implementation": f"{name}{varlen} ({SOURCE})",
    }  # fmt: skip
    for text, rate, time in _parts(found["rest"]):
        mode = MODES.get(text or block.get("mode", ""))
        if mode is None:
            raise CellError("does not say which pass it is of: fwd, bwd or fwd + bwd")
        _number(collected, number, rate, time, known | {"mode": mode}, name in ran)


def _number(collected: Collected, line: int, rate: str, time: str, known: dict[str, Any], ran: bool) -> None:
    """Take the TFLOP/s and the time of a pass, or its failure."""
    if _ZERO.fullmatch(rate):
        status = Status.ERROR if ran else Status.SKIPPED
        note = f"prints {rate}: " + ("failed, the cause is not said" if ran else "did not run")
        collected.add(line, "TFLOP/s", metric="tflops", status=status, note=note, printed=rate, **known)
        return
    if time:
        latency = _positive("ms", time)
        collected.add(
            line, "ms", metric="latency_ms", value=latency, statistic="printed", printed=f"{time} ms", **known
        )
        if rate:
            value = _positive("TFLOP/s", rate)
            collected.add_rate(line, "TFLOP/s", latency_ms=latency, metric="tflops", value=value, printed=rate, **known)
    else:
        value = _positive("TFLOP/s", rate)
        collected.add(line, "TFLOP/s", metric="tflops", value=value, statistic="printed", printed=rate, **known)


def _case(block: dict[str, str]) -> Case:
    """Return the case of a block's first line. Raises CellFault naming what of it is not taken."""

    def said(names: tuple[str, ...], parse: Any) -> Any:
        name = next((name for name in names if name in block), None)
        if name is None:
            return None
        try:
            return parse(block[name])
        except CellError as error:
            raise CellFault(name, block[name], str(error)) from error

    head_dim = said(("headdim", "hdim", "head_dim"), values.whole)
    seqlen = said(("seqlen",), values.whole)
    heads = said(("nheads",), values.whole)
    return Case(
        batch=said(("batch_size", "batch"), values.whole),
        num_heads=heads,
        num_kv_heads=said(("nheads_kv",), values.whole),
        seqlen_q=said(("seqlen_q",), values.whole) or seqlen,
        seqlen_k=seqlen,
        head_dim=head_dim,
        head_dim_v=said(("headdim_v", "hdim_v"), values.whole) or head_dim,
        causal=said(("causal",), values.boolean),
        page_size=0,
        latent_dim=0,
    )


class _PrintedTable:
    """The table of one pass: its columns, then its rows."""

    def __init__(self, mode: str, heads: dict[int, tuple[str, str]]) -> None:
        self._mode, self._heads = mode, heads
        self._columns: list[str] = []

    def read(self, collected: Collected, number: int, line: str) -> None:
        """Read the header, take a row, or pass over what is neither."""
        cells = line.split()
        if cells[:3] == ["hdim", "causal", "batch"]:
            self._columns = cells
        elif self._columns and cells and re.fullmatch(r"\d+(-\d+)?", cells[0], re.ASCII):
            self._row(collected, number, cells)

    def _row(self, collected: Collected, number: int, cells: list[str]) -> None:
        if len(cells) != len(self._columns):
            raise CellError(f"has {len(cells)} cells where the header has {len(self._columns)}")
        said = dict(zip(self._columns, cells, strict=True))
        shape = [
            name for name in ("hdim", "causal", "batch", "seqlen", "seqlen_q", "seqlen_kv", "gather_kv") if name in said
        ]
        if said.get("gather_kv", "—") != "—":
            raise CellFault("gather_kv", said["gather_kv"], "is sparse attention, which is not attention over all keys")
        width, _, width_v = said["hdim"].partition("-")
        if (width, width_v) == ("64", "512"):
            raise CellFault("hdim", said["hdim"], "is latent attention, whose layout the table does not say")
        heads, kv_heads = self._heads.get(int(width[:9]), ("", ""))
        block = {
            "headdim": width,
            "headdim_v": width_v or width,
            "causal": said["causal"],
            "batch": said["batch"],
            "seqlen": said.get("seqlen") or said.get("seqlen_kv", ""),
            **({"seqlen_q": said["seqlen_q"]} if "seqlen_q" in said else {}),
            **({"nheads": heads, "nheads_kv": kv_heads} if heads else {}),
        }
        known = {"run_id": collected.run(None), "case": _case(block), "mode": self._mode}
        for method in self._columns[len(shape) :]:
            if said[method] not in ("—", "-"):
                self._cell(collected, number, values.words(method), said[method], known)

    def _cell(self, collected: Collected, number: int, method: str, text: str, known: dict[str, Any]) -> None:
        """Take one `ms/TFLOPS/MFU%/TBs/BW%`, of which the last three may be missing."""
        parts = text.split("/")
        if len(parts) not in (2, 3, 4, 5):
            raise CellFault(method, text, "is not ms/TFLOPS/MFU%/TBs/BW%")
        known = known | {"implementation": f"{method} ({SOURCE})"}
        latency, rate = _positive(method, parts[0]), _positive(method, parts[1])
        collected.add(
            number, f"{method} ms", metric="latency_ms", value=latency, statistic="printed", printed=text, **known
        )
        collected.add_rate(
            number, f"{method} TFLOPS", latency_ms=latency, metric="tflops", value=rate, printed=text, **known
        )
        if len(parts) > 3 and (bandwidth := _zero_or_more(method, parts[3])):
            collected.add_rate(
                number, f"{method} TBs", latency_ms=latency, metric="gb_per_s", value=bandwidth * 1000, printed=text,
                **known,
            )  # fmt: skip


def _positive(column: str, text: str) -> float:
    try:
        return positive(text)
    except CellError as error:
        raise CellFault(column, text, str(error)) from error


def _zero_or_more(column: str, text: str) -> float:
    try:
        return values.number(text, minimum=0)
    except CellError as error:
        raise CellFault(column, text, str(error)) from error
