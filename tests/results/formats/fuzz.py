"""Break files of every format, import what is accepted, then draw every command and page over it.

    python -m tests.results.formats.fuzz --mutants 100000 [--seed 1] [--chunk 2000]
    python -m tests.results.formats.fuzz --mutants 0 --hostile 2000 [--chunk 50]

The second makes valid uploads with sizes that no device has, odd facts of the run and names of all scripts.

Each chunk has a separate home. Every defect is printed with the seed of its mutant, and its file is kept in --keep. The
last line of stdout is the sum as JSON; exit status 1 means that there was a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import streamlit as st
from streamlit.testing.v1 import AppTest

from pages.ui.shell.dashboard import SECTIONS
from results.__main__ import main as results_main
from results.files import journal, library
from results.formats import Understanding, UploadError, understand
from results.query import pages as of_pages
from results.records import measurement_to_json
from results.store.database import open_store
from tests.builders import TEXTS, chosen, import_understanding, odd_rows
from tests.results.formats.mutants import corpus, mutant, read

ROOT = Path(__file__).parents[3]
MARKUP = "![x]("  # one of the mutants' words; pages must escape it in Markdown
PAGES = tuple(entry.file for section in SECTIONS for entry in section.pages)
OF_A_GPU = tuple(entry.file for section in SECTIONS for entry in section.pages if entry.level)
_GPUS = 4  # GPUs of a home for which pages are drawn, in addition to the default one
_IMPORTED = 1000  # files per chunk, so that pages stay fast
_KINDS = ("title", "header", "subheader", "markdown", "caption", "info", "warning", "error", "success")
_LABELLED = ("button", "expander", "metric", "radio", "checkbox", "selectbox", "multiselect", "text_input", "tabs")


class Sum:
    """The outcomes of all mutants so far."""

    def __init__(self, keep: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.defects: list[str] = []
        self._keep = keep

    def defect(self, where: str, data: bytes | None = None) -> None:
        """Keep a defect with the file that shows it."""
        text = f"{where}: {traceback.format_exc(limit=-4)}"
        self.defects.append(text)
        print(text, file=sys.stderr, flush=True)
        if data is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / where.replace("/", "_")).write_bytes(data)


def main() -> int:
    """Run all chunks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--hostile", type=int, default=0, help="valid uploads of odd numbers and facts")
    parser.add_argument("--chunk", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-defects")
    options = parser.parse_args()
    found, names = Sum(options.keep), sorted(corpus())
    for first in range(0, options.mutants + options.hostile, options.chunk):
        with _home() as home:
            count = min(options.chunk, options.mutants + options.hostile - first)
            made = _accepted(found, names, first, count, options)
            if first >= options.mutants:
                made = _hostile(found, first, count, options.seed)
            _import(home, found, made)
            _commands(home, found, random.Random(first))
            _pages(home, found)
        print(json.dumps(dict(found.counts)), file=sys.stderr, flush=True)
    print(json.dumps({**found.counts, "defects": len(found.defects)}))
    return 1 if found.defects else 0


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """Yield a new home without published runs, and select it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(journal, "PUBLISHED", Path(folder) / "none"),
        patch.dict(os.environ, {"ATTNBENCH_HOME": folder}),
    ):
        st.cache_resource.clear()
        st.cache_data.clear()
        yield Path(folder)


def _accepted(
    found: Sum, names: list[str], first: int, count: int, options: argparse.Namespace
) -> Iterator[tuple[str, bytes, Understanding]]:
    """Yield each understood mutant with its origin."""
    for number in range(first, first + count):
        name = names[number % len(names)]
        data = mutant(name, random.Random(f"{options.seed} {number}"))
        found.counts["mutants"] += 1
        try:
            understood = read(name, data)
        except Exception:  # any exception but UploadError is a defect
            found.defect(f"reading {number} {name}", data)
            continue
        found.counts["refused" if understood is None else "understood"] += 1
        if understood is not None:
            yield f"{number} {name}", data, understood


def _hostile(found: Sum, first: int, count: int, seed: int) -> Iterator[tuple[str, bytes, Understanding]]:
    """Yield valid uploads of odd rows, each of a run with odd facts."""
    for number in range(first, first + count):
        chance = random.Random(f"hostile {seed} {number}")
        facts = chosen(chance, __file__, "FACTS")
        record = {"run_id": f"hostile-{number}", "source": "upload", **facts}
        rows = odd_rows(chance, 30, record["run_id"])
        names = ("torch_naive", "triton_fa2", "triton_decode", chance.choice(TEXTS), "x" * 200)
        lines = [measurement_to_json(replace(row, implementation=chance.choice(names))) for row in rows]
        for line in lines:
            del line["measurement_id"]
        data = json.dumps({"runs": [record], "measurements": lines}).encode()
        found.counts["hostile uploads"] += 1
        try:
            yield record["run_id"], data, understand("hostile.json", data)
        except UploadError as error:
            found.counts["refused"] += 1
            print(error, file=sys.stderr)
        except Exception:  # a defect
            found.defect(f"reading hostile {number}", data)


def _import(home: Path, found: Sum, accepted: Iterator[tuple[str, bytes, Understanding]]) -> None:
    """Import the mutants without rejected cells. A file that cannot be written whole must leave nothing."""
    imported = 0
    for where, data, understood in accepted:
        if not understood.measurements or imported >= _IMPORTED:
            continue
        before = len(journal.run_folders(home))
        try:
            ids = import_understanding(home, understood, skip_rejected=True)
        except UploadError:
            assert len(journal.run_folders(home)) == before, "a part of a refused file was imported"
            found.counts["refused at import"] += 1
            continue
        except Exception:  # a defect
            found.defect(f"importing {where}", data)
            continue
        imported += bool(ids)
        found.counts["imported"] += bool(ids)
    assert {path.name for path in home.iterdir()} <= {"runs"}, "an import wrote outside of the runs"


def _commands(home: Path, found: Sum, chance: random.Random) -> None:
    """Run every command over the home."""
    ids = [folder.run_id for folder in library.folders()]
    with closing(open_store(home)) as store:
        gpus = of_pages.gpus(store)["gpu"].tolist()
    commands = ["runs", "check --all", "check --json"]
    commands += [f"export --output {home / 'out'} --format {form}" for form in ("csv", "json", "md", "parquet")]
    commands += [f"report fa2_rtx4060 --run {run_id}" for run_id in chance.sample(ids, min(5, len(ids)))]
    commands += [f"compare {' '.join(chance.sample(ids, 2))} --json" for _ in range(10 if len(ids) > 1 else 0)]
    by_gpu = ("render --format md", "render --format html", "rule --format python", "rule --format json")
    slices = [
        [*command.split(), "--gpu", gpu]
        for gpu in chance.sample(gpus, min(_GPUS, len(gpus)))
        for command in (*by_gpu, "advise --format html")
    ]
    for arguments in (*(command.split() for command in commands), *slices, ["rebuild"]):
        binary = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        try:
            with contextlib.redirect_stdout(binary), contextlib.redirect_stderr(io.StringIO()):
                status = results_main(arguments)
            assert status in (0, 1), f"exit status {status}"
        except BaseException:  # includes SystemExit of argparse, which these arguments never cause
            found.defect(f"command {' '.join(arguments)}")
        found.counts["commands"] += 1
    (home / "out").unlink(missing_ok=True)


def _pages(home: Path, found: Sum) -> None:
    """Draw every page over the home, for the default GPU and for some others."""
    with closing(open_store(home)) as store:
        gpus = of_pages.gpus(store)["gpu"].tolist()
    os.chdir(ROOT)
    views = [(page, {}) for page in PAGES] + [("compare", {"of": kind}) for kind in ("GPUs", "Import beside a run")]
    views += [(page, {"gpu": gpu}) for gpu in gpus[:_GPUS] for page in OF_A_GPU]
    for page, params in views:
        try:
            app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=600)
            app.query_params.update(params)
            app = app.switch_page(f"pages/{page}.py").run()
            assert not app.exception, [problem.message for problem in app.exception]
            _check_markup(app)
        except Exception:  # a defect
            found.defect(f"page {page} for {params}")
        found.counts["pages"] += 1


def _check_markup(app: AppTest) -> None:
    shown = [(kind, element.value) for kind in _KINDS for element in getattr(app, kind)]
    shown += [(kind, element.label) for kind in _LABELLED for element in getattr(app, kind)]
    for kind, text in shown:
        assert MARKUP not in text, f"{kind} has markup: {text[:300]}"


if __name__ == "__main__":
    sys.exit(main())
