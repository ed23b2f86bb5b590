"""`python -m results`: import files, export measurements, compare and check runs, render reports, list runs and rebuild
the database.

Data goes to stdout, everything else to stderr. Exit status 0: done; 1: it could not be done, and the message says why;
2: the arguments are wrong. What a check finds is no failure, but with --strict 1 says that something impossible was
found.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from results import formats
from results.checks import IMPOSSIBLE, by_rule, check
from results.commands import parser_of
from results.compare.against import NotAgainst, compare_versions
from results.compare.compare import Side, as_json, compare
from results.features import FEATURES
from results.files import journal, library
from results.files.journal import JournalError, RunFolder
from results.formats import UploadError, bounded, mapping
from results.formats.archives import MAX_TABLES, MAX_UNPACKED, opened
from results.formats.importing import LEAVE, NEW, REPLACE
from results.formats.tables import MAX_ROWS
from results.formats.upload import Understanding
from results.query import pages
from results.recommend import rule, rule_file
from results.records import Measurement, Run
from results.render import export, peers, site, slice, svg
from results.render.html import html_page
from results.render.terminal import comparison_lines, finding_lines
from results.reports import Report, ReportError, coverage, default_runs, headline, receipts, side_by_side
from results.reports import get as report_named
from results.reports import names as report_names
from results.reports.rendering import Runs, render_report
from results.slice import Filters, SliceError
from results.store.database import Store, StoreError, open_store, rebuild

EXIT_CANCELLED = 130  # the exit status of shells after Ctrl-C
_ONE = ("gpu", "workload", "mask", "mode", "timing", "baseline", "shape")  # filters of one value
_MANY: dict[str, dict[str, str]] = dict.fromkeys(("dtype", "implementation", "source", "run"), {})
_MANY |= dict.fromkeys(("seqlen", "head_dim", "batch", "num_heads"), {"type": "int"})
_RULES = {"python": rule.as_python, "json": rule.as_json}


class CommandError(RuntimeError):
    """A command that cannot be carried out; the message says why and what is possible."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.do(options)
    except BrokenPipeError:  # the reader of stdout has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say("Cancelled.")
        return EXIT_CANCELLED
    except (CommandError, JournalError, NotAgainst, ReportError, StoreError, UploadError, SliceError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or 'The output'} cannot be used: {error.strerror}.")


def _parser() -> argparse.ArgumentParser:
    one = [{"flags": [f"--{name}"], "help": "as the pages choose it if left out"} for name in _ONE]
    several = {"action": "append", "default": [], "help": "may be given several times"}
    return parser_of(
        Path(__file__).with_name("commands.toml"),
        _COMMANDS,
        texts={
            "existing": (LEAVE, NEW, REPLACE),
            "forms": sorted(export.FORMS),
            "reports": report_names(),
            "tables": headline.TABLES,
            "rules": sorted(_RULES),
            "features": [feature.name for feature in FEATURES],
        },
        groups={
            "selection": [{"flags": [f"--{field.name}"], **several} for field in fields(export.Selection)],
            "one": one,
            "many": [{"flags": [f"--{name}"], **kind, **several} for name, kind in _MANY.items()],
        },
        prog="python -m results",
        description=__doc__.partition("\n\n")[0].split("`: ")[1],
    )


def _import(options: argparse.Namespace) -> int:
    failed = 0
    for given in options.files:
        try:
            files = bounded.call(opened, _given(Path(given)))
        except (OSError, UploadError) as error:
            why = error if isinstance(error, UploadError) else error.strerror
            failed = _complain(f"{given} cannot be read: {str(why).rstrip('.')}.")
            continue
        for name, data in files:
            try:
                _import_one(name, data, options)
            except formats.AlreadyHere as error:
                _say(str(error))
            except UploadError as error:
                failed = _complain(f"{name}: {error}")
    return failed


def _given(path: Path) -> list[tuple[str, bytes]]:
    """Return a file, or the files below a folder."""
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    below = [each for each in found if each == path or (each.is_file() and not each.name.startswith("."))]
    if len(below) > MAX_TABLES:
        raise UploadError(f"it holds {len(below)} files; at most {MAX_TABLES} are taken at once")
    if (size := sum(each.stat().st_size for each in below)) > MAX_UNPACKED:
        raise UploadError(f"it has {size:,} bytes; at most {MAX_UNPACKED:,} are read at once. Split it")
    return [(str(each), each.read_bytes()) for each in below]


def _import_one(name: str, data: bytes, options: argparse.Namespace) -> None:
    home = journal.home()
    found = _understood(name, data, options)
    _describe(found)
    if options.dry_run:
        return
    alone = formats.left_alone(formats.standing(home, found)) if options.existing == LEAVE else []
    how = {name: getattr(options, name) for name in ("gpu_name", "skip_rejected", "existing")}
    run_ids = bounded.call(formats.import_for_undo, home, found, **how).run_ids
    for sentence in alone:
        _say(f"{name}: {sentence}")
    if run_ids:
        _say(f"{name}: imported as {', '.join(run_ids)}.")
        _doubt(run_ids)
    print(*run_ids, sep="\n", end="\n" * bool(run_ids))


def _doubt(run_ids: Sequence[str]) -> None:
    """Say what is impossible in new runs, also next to those of which they may be copies."""
    with _store() as store:
        similar = pages.runs_like(store, run_ids)
    mine, known = ([_read(_folder(run_id)) for run_id in names] for names in (run_ids, similar))
    impossible = [found for found in bounded.call(check, mine, known) if found.weight == IMPOSSIBLE]
    for rule_, found in by_rule(impossible):
        _say(f"  impossible, {rule_.title}: {found[0].sentence}")


def _understood(name: str, data: bytes, options: argparse.Namespace) -> Understanding:
    """Understand a file; a plain table as the options say, which is then remembered for its header."""
    known = mapping.remembered(journal.home())
    changed = bool(options.column or options.decimal or options.all_rows)
    try:
        found = bounded.call(formats.understand, name, data, known)
        sheet, start = found.sheet, found.mapping
    except formats.UnknownTable as error:
        if not changed:
            raise
        sheet, start = error.sheet, mapping.guess(error.sheet)
    if not changed or sheet is None or start is None:
        return found
    chosen = mapping.changed(start, sheet.header, options.column, options.all_rows, options.decimal)
    found = bounded.call(formats.understand, name, data, {**known, mapping.key_of(sheet.header): chosen})
    if not options.dry_run:
        mapping.remember(journal.home(), sheet.header, chosen)
    return found


def _describe(found: Understanding) -> None:
    name = found.upload.filename
    _say(f"{name}: {found.description}; {len(found.measurements)} measurements, {len(found.rejected)} rejected.")
    if found.columns:
        _say(f"  Read: {', '.join(f'{c.header} as {c.meaning}' for c in found.columns if c.meaning)}.")
    for sentence in (*found.assumptions, *(f"Left out: {what}" for what in found.left_out), *found.questions):
        _say(f"  {sentence}")
    for rejection in found.rejected[:20]:
        column = f", column {rejection.column}" if rejection.column else ""
        _say(f"  Line {rejection.line}{column}: {rejection.value!r} {rejection.reason}.")
    if len(found.rejected) > 20:
        _say(f"  and {len(found.rejected) - 20} more.")
    if found.rejected:
        _say("  With --skip-rejected the rest is imported.")
    if found.ignored:
        _say(f"  Not used: {', '.join(found.ignored)}.")


def _export(options: argparse.Namespace) -> int:
    chosen = {field.name: tuple(getattr(options, field.name)) for field in fields(export.Selection)}
    with _store() as store:
        for run_id in chosen["run"]:
            _folder(run_id).run()
        for name, values in chosen.items():
            possible = export.choices(store, name) if values else []
            if unknown := [value for value in values if value not in possible]:
                raise CommandError(f"There is no {name} {unknown[0]!r}. Possible: {', '.join(possible) or 'none'}.")
        selection = export.Selection(**chosen)
        number = export.count(store, selection)
        if not number:
            raise CommandError("No measurement is of all of these at once; leave out a filter.")
        with _output(options.output) as file:
            written = export.write(store, options.format, file, selection)
    if options.format in peers.FORMS:
        takes = peers.TAKES[options.format]
        _say(f"{written} of {number} measurements written. {options.format} has room for {takes}, of one timing a run.")
        return 0 if written else 1
    _say(f"{number} measurements written.")
    if number > MAX_ROWS:
        _say_how_to_split(selection, options)
    return 0


def _say_how_to_split(selection: export.Selection, options: argparse.Namespace) -> None:
    """Name the commands whose files an upload takes, with whole runs in each."""
    with _store() as store:
        parts = export.parts(store, selection, MAX_ROWS)
    _say(f"An upload takes {MAX_ROWS:,} rows at once. To bring them to another attnbench, export in parts:")
    filters = {name: values for name, values in vars(selection).items() if values and name != "run"}
    rest = [word for name, values in filters.items() for value in values for word in (f"--{name}", value)]
    for number, runs in enumerate(parts, start=1):
        named = [word for run in runs for word in ("--run", run)]
        words = ["python", "-m", "results", "export", "--format", options.format, *named, *rest]
        _say(f"  {shlex.join(words)} --output part-{number}.{options.format}")


def _report(options: argparse.Namespace) -> int:
    if options.coverage:
        return _coverage(options)
    if not options.name:
        raise CommandError(f"Which report? Available: {', '.join(report_names())}. Or --coverage, of all of them.")
    published, report = side_by_side.published(options.name), report_named(options.name)
    runs = [] if options.as_printed else _beside_report(options.name, options.run, published)
    if options.beside:
        sys.stdout.write(_beside(report, published, runs))
    elif not runs:
        sys.stdout.write(render_report(options.name, published))
    elif options.own_only:
        sys.stdout.write(side_by_side.render_own(options.name, published, runs))
    else:
        sys.stdout.write(side_by_side.render(options.name, published, runs))
    return 0


def _coverage(options: argparse.Namespace) -> int:
    """Print how much of one report or of all is filled; of one also what would fill the rest."""
    for name in [options.name] if options.name else report_names():
        published = side_by_side.published(name)
        runs = _beside_report(name, options.run, published)
        tables = coverage.coverage(side_by_side.sections(name, published, runs))
        print(coverage.as_markdown(report_named(name).label, tables, with_gaps=bool(options.name)))
    return 0


def _beside_report(name: str, named: Sequence[str], published: Runs) -> Runs:
    """Return the named runs, or those that fill a report best."""
    if not named:
        with _store() as store:
            named = default_runs.default_runs(name, published, default_runs.tried_of_store(store))
    return [_read(_folder(run)) for run in named]


def _beside(report: Report, published: Runs, runs: Runs) -> str:
    systems = report.implementations
    if len(published) != 1 or len(systems) != 2 or len(runs) != 1:
        raise CommandError("--beside needs --run RUN and a report of one GPU that compares one system with a baseline.")
    baseline, implementation = systems.values()
    return side_by_side.speedups_beside(published[0][1], runs[0][1], baseline=baseline, implementation=implementation)


def _headline(options: argparse.Namespace) -> int:
    documents = {path: path.read_text(encoding="utf-8") for path in map(Path, options.update)}
    held = {name for text in documents.values() for name in headline.blocks(text)}
    wanted = [name for name in headline.TABLES if options.name in (None, name) and (name in held or not documents)]
    text = headline.render(wanted)
    if not documents:
        sys.stdout.write(text)
    for path, document in documents.items():
        path.write_text(headline.updated(document, headline.blocks(text)), encoding="utf-8")
    return 0


def _receipt(options: argparse.Namespace) -> int:
    if not options.claim:
        sys.stdout.writelines(f"{name}  {words}\n" for name, words in receipts.names())
        return 0
    name, at = receipts.split(options.claim)
    if name == receipts.OURS:
        shipped = headline.Shipped()
        shipped.folders += [_folder(run) for run in options.run]
        sys.stdout.write(receipts.of_headline(at, shipped, options.run))
    else:
        published = side_by_side.published(name)
        sys.stdout.write(receipts.of_report(name, at, published, _beside_report(name, options.run, published)))
    return 0


def _site(options: argparse.Namespace) -> int:
    options.folder.mkdir(parents=True, exist_ok=True)  # before what takes a minute
    held = list(library.with_records(complain=_say))
    read = list(library.read_all([folder for folder, _ in held], complain=_say))
    findings, tried, reports = check(read), default_runs.tried_of_runs(read), {}
    for name in () if options.no_reports else report_names():
        printed = side_by_side.published(name)
        best = default_runs.default_runs(name, printed, tried)
        beside = [pair for run in best for pair in read if pair[0].run_id == run]
        reports[name] = report_named(name).label, side_by_side.render(name, printed, beside)
    with _store() as store:
        if unknown := [gpu for gpu in options.gpu if gpu not in pages.gpus(store)["gpu"].tolist()]:
            raise CommandError(f"There is no GPU {unknown[0]!r}. Here: {', '.join(pages.gpus(store)['gpu'])}.")
        runs = [run for _, run in held]
        written = site.write(store, options.folder, runs=runs, findings=findings, reports=reports, gpus=options.gpu)
    size = sum(path.stat().st_size for path in written) / 1e6
    _say(f"{len(written)} files, {size:.1f} MB. Open {options.folder / 'index.html'} in a browser.")
    return 0


def _compare(options: argparse.Namespace) -> int:
    if options.second is None:
        found = compare_versions(*_read(_folder(options.first)))
    else:
        sides = [_side(name) for name in (options.first, options.second)]
        if (sides[0].implementation is None) != (sides[1].implementation is None):
            raise CommandError("Either both A and B name an implementation (RUN/IMPLEMENTATION), or none does.")
        found = compare(*sides)
    if options.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print(*comparison_lines(found), sep="\n")
    return 0


def _side(name: str) -> Side:
    run_id, _, implementation = name.partition("/")
    run, measurements = _read(_folder(run_id))
    possible = sorted({m.implementation for m in measurements})
    if implementation and implementation not in possible:
        raise CommandError(f"Run {run_id!r} has no {implementation!r}. Possible: {', '.join(possible) or 'none'}.")
    return Side(run, measurements, implementation or None)


def _check(options: argparse.Namespace) -> int:
    runs = list(library.with_records(complain=_say))
    reports = {run.report for _, run in runs if run.source == "published" and run.report}
    possible = reports | {run.run_id for _, run in runs}
    if unknown := [name for name in options.names if name not in possible]:
        raise CommandError(f"There is no run or report {unknown[0]!r}; `python -m results runs` lists the runs.")
    chosen = [run for _, run in runs if not options.names or {run.run_id, run.report} & set(options.names)]
    beside = {run.report for run in chosen} & reports  # the runs of a report are checked against each other
    wanted = [folder for folder, run in runs if run in chosen or run.report in beside]
    shipped = all(run.source in ("shipped", "published") for run in chosen)  # nobody's copy: the others need no look
    others = [] if shipped else [folder for folder, run in runs if folder not in wanted]
    found = check(library.read_all(wanted, complain=_say), library.read_all(others, complain=_say))
    found = [finding for finding in found if finding.run_id in {run.run_id for run in chosen}]
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        print(*finding_lines(found, chosen, every=options.all), sep="\n")
    return int(options.strict and any(finding.weight == IMPOSSIBLE for finding in found))


def _rule(options: argparse.Namespace) -> int:
    """Write the rule, of every mask and mode where none is chosen; without --gpu this machine's is installed."""
    asked = _filters(options)
    if (options.install or options.export) and (options.format or options.output):
        raise CommandError("--format and --output are for the rule that programs copy; omit --install and --export.")
    if options.install and asked.gpu is None:
        asked = replace(asked, gpu=rule_file.gpu_here())
    with _store() as store:
        whole = slice.complete(store, asked)
        wanted = replace(whole, mask=asked.mask, mode=asked.mode, shape=asked.shape)
        if options.install or options.export:
            return _rule_file(store, replace(wanted, timing=asked.timing), options.export)
        text = _RULES[options.format or "python"](rule.rule_of(store, wanted))
    return _write(text, options)


def _rule_file(store: Store, wanted: Filters, name: str | None) -> int:
    """Install the rule that `kernels.attention` obeys, or write it, of every timing where none is chosen."""
    found = rule_file.rule_file(store, wanted)
    if name:
        with _output(name) as file:
            file.write(rule_file.as_text(found).encode())
    path = Path(name) if name else rule_file.install(found)
    _say(f"{path}: {rule_file.summary(found)}")
    return 0


def _render(options: argparse.Namespace) -> int:
    drawn: list[str] = []
    if options.report:
        own = [_read(_folder(run)) for run in options.run]
        report_named(options.report)  # refuses an unknown name
        printed = side_by_side.published(options.report)
        found = side_by_side.sections(options.report, printed, own)
        text, drawn = side_by_side.render(options.report, printed, own), svg.own_against_printed(found)
    else:
        with _store() as store:
            text = slice.render(store, slice.complete(store, _filters(options)))
    return _write(html_page(text, drawn) if options.format == "html" else text, options)


def _advise(options: argparse.Namespace) -> int:
    with _store() as store:
        text = slice.render_advice(store, slice.complete(store, _filters(options)))
    return _write(html_page(text) if options.format == "html" else text, options)


def _filters(options: argparse.Namespace) -> Filters:
    chosen: dict[str, Any] = {name: getattr(options, name) for name in _ONE}
    chosen |= {name: tuple(getattr(options, name)) for name in (*_MANY, "features")}
    return Filters(**chosen)


def _write(text: str, options: argparse.Namespace) -> int:
    with _output(options.output) as file:
        file.write(text.encode())
    return 0


def _publish(options: argparse.Namespace) -> int:
    shipped = library.publish(RunFolder.open(journal.home(), options.run), git_commit=options.git_commit)
    _say(f"{shipped.path} ships with the repository once it is committed.")
    return 0


def _runs(_options: argparse.Namespace) -> int:
    with _store() as store:
        counts = dict(store.rows("SELECT run_id, count(*) FROM measurements GROUP BY run_id"))
        for run_id, problems in groupby(store.problems, key=itemgetter(0)):
            for problem in journal.problem_words((line, reason) for _, line, reason in problems):
                _say(f"{run_id}, {problem}")
    print("run", "source", "condition", "created", "gpu", "measurements", sep="\t")
    for folder, run in library.with_records():  # the others are among the problems
        facts = (run.created or "", run.gpu_name or "", counts.get(run.run_id, 0))
        print(run.run_id, run.source, folder.condition(), *facts, sep="\t")
    return 0


def _rebuild(_options: argparse.Namespace) -> int:
    _say(f"{rebuild()} measurements are in the new {journal.home() / 'store.duckdb'}.")
    return 0


def _folder(run_id: str) -> RunFolder:
    folder = library.find(run_id)
    if folder is None:
        raise CommandError(f"There is no run {run_id!r}; `python -m results runs` lists them.")
    return folder


def _read(folder: RunFolder) -> tuple[Run, list[Measurement]]:
    return library.read(folder, complain=_say)


@contextmanager
def _store() -> Iterator[Store]:
    with closing(open_store()) as store:
        if said := store.notice or store.mended:
            _say(said)
        yield store


@contextmanager
def _output(name: str | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears when it is whole."""
    if name is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    path = Path(name)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise CommandError(f"{name} cannot be written: {error.strerror}; name another file.") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _complain(sentence: str) -> int:
    _say(sentence)
    return 1


_FUNCTIONS = (
    _import, _export, _report, _headline, _receipt, _site, _runs, _publish, _compare, _check, _rule, _render, _advise,
    _rebuild,
)  # fmt: skip
_COMMANDS = {function.__name__.removeprefix("_"): function for function in _FUNCTIONS}


if __name__ == "__main__":
    sys.exit(main())
