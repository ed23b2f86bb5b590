"""llama-bench's results; llama_bench.toml describes the formats."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.formats import values
from results.formats.peers.engine import peers_of, refuse_unless_near, whole_from_0
from results.formats.peers.sources import Entry, Found, Row, objects, of_sheet, row_of, table, tables
from results.formats.tables import MARKDOWN, Sheet, decode
from results.formats.upload import Upload
from results.paths import toml_of

_WORDS = toml_of(__file__)["words"]
_COLUMNS = ("model_type", "n_prompt", "n_gen", "avg_ns", "avg_ts")
_PRINTED = ("model", "backend", "test", "t/s")  # columns of the Markdown table
_SETTINGS, _DTYPES = _WORDS["settings"], _WORDS["dtypes"]
_TEST = re.compile(r"^(?:pp ?(?P<pp>\d{1,9}))?\+?(?:tg ?(?P<tg>\d{1,9}))?(?: @ d ?(?P<d>\d{1,9}))?$", re.ASCII)
_RATE = re.compile(r"^(?P<mean>[\d.]{1,20})(?: ± (?P<std>[\d.]{1,20}))?$", re.ASCII)
_DEVICE = re.compile(r"(?:Device \d+: ([^,]{1,120}), compute capability|^ggml_vulkan: \d+ = (.{1,120}?) \([^()]*\) \|)")
_BUILD = re.compile(r"^build: (?P<commit>[0-9a-f]{6,40}) \((?P<number>\d{1,9})\)", re.ASCII)
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def _find(upload: Upload) -> Found | None:
    """Return the rows of a CSV, of JSON objects, or of all Markdown tables with the lines around them."""
    if found := table(upload, _COLUMNS) or objects(upload, _COLUMNS):
        return found
    sheets = tables(upload, _PRINTED, MARKDOWN)
    lines = decode(upload.data).splitlines() if sheets else []
    entries = [
        replace(entry, value=entry.value.having(**around))
        for sheet in sheets
        for around in (_around(lines, sheet),)
        for entry in of_sheet(sheet).entries
    ]
    return Found(entries, header=sheets[0].header) if entries else None


def _around(lines: Sequence[str], sheet: Sheet) -> dict[str, str]:
    """Return what llama-bench prints around a table: the devices before it, the build after it, and its line."""
    first, last = (sheet.rows[at][0] if sheet.rows else 1 for at in (0, -1))
    before = first - 3
    while before > 0 and not lines[before - 1].lstrip().startswith("|"):
        before -= 1
    devices = [found for line in lines[before : first - 1] for found in _DEVICE.findall(line[:1000])]
    after = lines[last : last + 10]
    following = next((at for at, line in enumerate(after) if line.lstrip().startswith("|")), len(after))
    build = next((found for line in after[:following] if (found := _BUILD.match(line.strip()))), None)
    return {
        "gpu_info": ", ".join(dict.fromkeys(nvidia or vulkan for nvidia, vulkan in devices)),
        "build_commit": build["commit"] if build else "",
        "build_number": build["number"] if build else "",
        "table": str(first - 2),
    }


def _split(entry: Entry) -> Iterator[Row | str]:
    row = entry.value if isinstance(entry.value, Row) else row_of(entry)
    row = _printed(row) if "test" in row.places else row
    prompt, generated = (row.read(name, whole_from_0) or 0 for name in ("n_prompt", "n_gen"))
    if prompt and generated:
        yield "tests of a prompt and a generation together (pg)"
        return
    if not prompt and not generated:
        raise row.fault("n_prompt", "is 0, and so is n_gen: the test has no tokens")
    if nanoseconds := row.read("avg_ns", values.number):
        refuse_unless_near(row, "avg_ts", (prompt + generated) / nanoseconds * 1e9, "avg_ns and the tokens of the test")
    depth = row.read("n_depth", whole_from_0) or 0
    said: dict[str, Any] = {} if prompt else {"avg_ns": None}  # the time of a generation follows from its rate
    said |= {"tokens": prompt or 1, "context": depth + prompt + generated, "mode": "prefill" if prompt else "decode"}
    said |= {"time": time if _ISO.fullmatch(time := row.text("test_time")) else None}
    yield row.having(**said, dtype=_DTYPES.get(row.text("model_type").rpartition(" ")[2]))


def _printed(row: Row) -> Row:
    """Return a row of a Markdown table under the column names of the other outputs."""
    test, rate = _TEST.match(row.text("test")), _RATE.match(row.text("t/s"))
    if test is None or not any(test.groups()):
        raise row.fault("test", "is not a test such as pp512, tg128 or tg128 @ d512")
    if rate is None:
        raise row.fault("t/s", "is not a rate such as 132.19 ± 0.55")
    return row.having(
        model_type=row.text("model"),
        backends=row.text("backend"),
        flash_attn=row.text("fa"),
        n_prompt=test["pp"],
        n_gen=test["tg"],
        n_depth=test["d"],
        avg_ts=rate["mean"],
        stddev_ts=rate["std"],
    )


def _differing(rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Add the settings that differ between rows."""
    names = {name: short for name, short in _SETTINGS.items() if len({row.text(name) for row in rows}) > 1}
    return lambda row: {
        "settings": " ".join(f"{short} {text}" for name, short in names.items() if (text := row.text(name)))
    }


def _run(row: Row) -> dict[str, Any]:
    gpu, cpu, backends, build, line = (
        row.read(name) for name in ("gpu_info", "cpu_info", "backends", "build_commit", "table")
    )
    device = "cpu" if backends in ("CPU", "BLAS") else "cuda" if "CUDA" in (backends or "") else None
    return {
        "key": (gpu, cpu, backends, build, line),
        "title": " ".join(filter(None, (build and f"llama.cpp {build}", line and f"table of line {line}"))),
        "gpu_name": cpu if device == "cpu" else gpu,
        "cpu": cpu,
        "device_type": device,
    }


(PEER,) = peers_of(__file__, globals())
