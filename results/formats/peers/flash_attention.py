"""What FlashAttention's benchmark scripts print; flash_attention.toml describes the formats."""

import re
from collections.abc import Iterator, Mapping

from results.formats import values
from results.formats.errors import CellError, UploadError
from results.formats.peers.engine import Failure, peers_of
from results.formats.peers.sources import Entry, Found, Row, lines_of, row_with
from results.formats.tables import MAX_ROWS
from results.formats.upload import Upload
from results.records import Status

_MODES = {"fwd": "fwd", "bwd": "bwd", "fwd + bwd": "fwd_bwd", "fwdbwd": "fwd_bwd"}
_MAX_LINE = 2000
_ZERO = re.compile(r"0+(?:\.0*)?")
_BLOCK = re.compile(r"^\W*### (?P<said>[^#]*\bseqlen *=[^#]*) ###\W*$")
_METHOD = re.compile(r"^(?P<name>[^:]{1,80}?)(?P<rest>(?: (?:fwd \+ bwd|fwd|bwd))?:.*TFLOP.*)$")
_PASS = re.compile(r"(fwd \+ bwd|fwd|bwd):")
_RATE = re.compile(r"(\S+) *TFLOP[sS](?:/s)?\b")
_TIME = re.compile(r"([^\s,:]+?) *ms\b")
_TABLE = re.compile(r"^\W*(?P<mode>FWD|BWD) \(ms / TFLOPS.*\)\W*$")
_TABLE_ROW = re.compile(r"\d+(-\d+)?", re.ASCII)
_HEADS = re.compile(r"Benchmarking .{1,200}?\bhdim=(\d+), .{0,300}?\bnheads=(\d+), nheads_kv=(\d+)")
_SHAPE = ("hdim", "causal", "batch", "seqlen", "seqlen_q", "seqlen_kv", "gather_kv")  # the first columns of a table
_RENAMED = {"headdim": "hdim", "head_dim": "hdim", "headdim_v": "hdim_v", "batch_size": "batch", "seqlen_kv": "seqlen"}


def _find(upload: Upload) -> Found | None:
    """Return the lines of blocks and tables, each with what the lines before it state."""
    found = lines_of(upload, (b"###", b"(ms / TFLOPS")) if b"TFLOP" in upload.data else []
    lines = [line.rstrip()[:_MAX_LINE] for line in found]
    if not any(_BLOCK.match(line) or _TABLE.match(line) for line in lines):
        return None
    if len(lines) > MAX_ROWS:
        raise UploadError(f"{upload.filename} has {len(lines):,} lines; at most {MAX_ROWS:,} are taken. Split it.")
    return Found(list(_entries(lines)))


def _entries(lines: list[str]) -> Iterator[Entry]:
    heads = {found[1]: (found[2], found[3]) for line in lines if (found := _HEADS.search(line))}
    ran = {name for line in lines for name, _, rate, _ in _passes(line) if not _ZERO.fullmatch(rate)}
    block: dict[str, str] = {}
    mode = ""
    columns: tuple[str, ...] = ()
    for number, line in enumerate(lines, start=1):
        if found := _BLOCK.match(line):
            parts = (part.partition("=") for part in found["said"].split(","))
            said = {name.strip(): text.strip().strip("'") for name, _, text in parts}
            block, mode = {_RENAMED.get(name, name): text for name, text in said.items()}, ""
        elif found := _TABLE.match(line):
            block, mode, columns = {}, found["mode"].lower(), ()
        elif mode and line.split()[:3] == ["hdim", "causal", "batch"]:
            columns = tuple(line.split())
        elif mode and columns and (cells := line.split()) and _TABLE_ROW.fullmatch(cells[0]):
            yield Entry(number, (columns, cells, {"mode": mode, "heads": heads}), line)
        elif block and "TFLOP" in line:
            yield Entry(number, (None, line, {"ran": ran, "block": block}), line)


def _split(entry: Entry) -> Iterator[Row]:
    columns, value, context = entry.value
    return _of_line(entry.place, value, **context) if columns is None else _of_table(entry, columns, value, **context)


def _of_line(place: int, line: str, ran: set[str], block: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each pass of one method of a block."""
    passes = list(_passes(line))
    if not passes:
        raise CellError("has TFLOP/s, but no method before a colon")
    for name, mode, rate, time in passes:
        if not name or name in _MODES:
            raise CellError("names no method")
        failed = bool(_ZERO.fullmatch(rate))
        numbers = {"ms": "" if failed else time, "TFLOP/s": rate, "ran": name in ran, "failed": failed}
        if not time and not rate:
            raise CellError("has no number before TFLOP/s")
        said = {"seqlen_q": block.get("seqlen"), "hdim_v": block.get("hdim"), **block, **numbers, "method": name}
        said["varlen"] = "varlen" if block.get("varlen") == "True" else None
        yield row_with(place, said | {"pass": _MODES.get(mode or block.get("mode", ""))})


def _passes(line: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the method, the pass, the TFLOP/s and the milliseconds of every pass in a line of a method."""
    if found := _METHOD.match(line):
        pieces = _PASS.split(found["rest"])
        for mode, text in zip(pieces[1::2], pieces[2::2], strict=True) if len(pieces) > 1 else [("", found["rest"])]:
            rate, time = _RATE.search(text), _TIME.search(text)
            yield found["name"].strip(" -*`|"), mode, rate[1] if rate else "", time[1] if time else ""


def _of_table(
    entry: Entry, columns: tuple[str, ...], cells: list[str], mode: str, heads: Mapping[str, tuple[str, str]]
) -> Iterator[Row]:
    """Yield a row for each method of a row of a table."""
    if len(cells) != len(columns):
        raise CellError(f"has {len(cells)} cells where the header has {len(columns)}")
    said = dict(zip(columns, cells, strict=True))
    row = row_with(entry.place, said)
    if said.get("gather_kv", "—") != "—":
        raise row.fault("gather_kv", "is sparse attention, which is not attention over all keys")
    width, _, width_v = said["hdim"].partition("-")
    if (width, width_v) == ("64", "512"):
        raise row.fault("hdim", "is latent attention, whose layout the table does not say")
    keys = said.get("seqlen") or said.get("seqlen_kv")
    nheads, nheads_kv = heads.get(width, (None, None))
    shape = {"hdim": width, "hdim_v": width_v or width, "seqlen": keys, "seqlen_q": said.get("seqlen_q") or keys}
    for method in columns[sum(name in said for name in _SHAPE) :]:
        if said[method] not in ("—", "-"):
            numbers = dict(zip(("ms", "TFLOPS", "MFU", "TBs", "BW"), said[method].split("/"), strict=False))
            if len(numbers) < 2 or said[method].count("/") > 4:
                raise row.fault(method, "is not ms/TFLOPS/MFU%/TBs/BW%")
            for name in ("ms", "TFLOPS"):
                row.having(**{method: numbers[name]}).need(method, values.positive)
            named = {f"{method} {name}": text for name, text in numbers.items()}
            more = {"method": method, "pass": mode, "nheads": nheads, "nheads_kv": nheads_kv}
            yield row.having(f"{method} ", **shape, **more, **named, printed=said[method])


def _mode(row: Row) -> str:
    if mode := row.text("pass"):
        return mode
    raise CellError("does not say which pass it is of: fwd, bwd or fwd + bwd")


def _fails(row: Row) -> list[Failure]:
    if not row.value("failed"):
        return []
    rate, ran = row.text("TFLOP/s"), row.value("ran")
    note = f"prints {rate}: {'failed, the cause is not said' if ran else 'did not run'}"
    return [Failure(PEER.numbers[1], Status.ERROR if ran else Status.SKIPPED, note, rate)]


(PEER,) = peers_of(__file__, globals())
