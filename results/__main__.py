"""`python -m results`: import files, export measurements, render reports, list runs and rebuild the database.

Data goes to stdout, everything else to stderr. Exit status 0: done; 1: it could not be done, and the message says why;
2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import BinaryIO

from results import export, journal
from results.formats import UploadError, import_understanding, understand
from results.formats.upload import Understanding
from results.journal import JournalError, RunFolder
from results.reports import ReportError
from results.reports import get as report_named
from results.reports import names as report_names
from results.store import Store, StoreError, open_store, rebuild


class CommandError(RuntimeError):
    """A command that cannot be carried out; the message says why and what is possible."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except BrokenPipeError:  # the reader of stdout has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CommandError, JournalError, ReportError, StoreError, UploadError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or 'The output'} cannot be used: {error.strerror}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m results", description=__doc__.partition("\n")[0].split("`: ")[1])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("import", help="take in results from other machines and tools")
    command.add_argument("files", nargs="+", metavar="FILE")
    command.add_argument("--dry-run", action="store_true", help="only say how the files would be understood")
    command.add_argument("--gpu-name", help="the GPU, for files that do not name it")
    command.add_argument("--skip-rejected", action="store_true", help="import the rest of a file with rejected cells")
    command.set_defaults(command=_import)

    command = commands.add_parser("export", help="write measurements as CSV, JSON, Markdown or Parquet")
    command.add_argument("--format", choices=sorted(export.FORMS), default="csv")
    command.add_argument("--output", metavar="FILE", help="instead of stdout")
    for name in (field.name for field in fields(export.Selection)):
        command.add_argument(f"--{name}", action="append", default=[], help="may be given several times")
    command.set_defaults(command=_export)

    command = commands.add_parser("report", help="a published report as printed, or in its layout the numbers of a run")
    command.add_argument("name", metavar="NAME", choices=report_names(), help=", ".join(report_names()))
    command.add_argument("--run", help="a run of your own; without it the published numbers")
    command.set_defaults(command=_report)

    command = commands.add_parser("runs", help="list the runs, newest first")
    command.set_defaults(command=_runs)

    command = commands.add_parser("rebuild", help="make the database anew from the run folders")
    command.set_defaults(command=_rebuild)
    return parser


def _import(options: argparse.Namespace) -> int:
    failed = 0
    for name in options.files:
        try:
            found = understand(name, Path(name).read_bytes())
            _describe(found)
            if options.dry_run:
                continue
            run_ids = import_understanding(
                journal.home(), found, gpu_name=options.gpu_name, skip_rejected=options.skip_rejected
            )
        except OSError as error:
            failed = _complain(f"{name} cannot be read: {error.strerror}.")
        except UploadError as error:
            failed = _complain(f"{name}: {error}")
        else:
            _say(f"{name}: imported as {', '.join(run_ids)}." if run_ids else f"{name}: is here already.")
            print(*run_ids, sep="\n", end="\n" * bool(run_ids))
    return failed


def _describe(found: Understanding) -> None:
    name = found.upload.filename
    _say(f"{name}: {found.description}; {len(found.measurements)} measurements, {len(found.rejected)} rejected.")
    for sentence in (*found.assumptions, *found.questions):
        _say(f"  {sentence}")
    for rejection in found.rejected[:20]:
        column = f", column {rejection.column}" if rejection.column else ""
        _say(f"  Line {rejection.line}{column}: {rejection.value!r} {rejection.reason}.")
    if len(found.rejected) > 20:
        _say(f"  and {len(found.rejected) - 20} more.")
    if found.ignored:
        _say(f"  Not used: {', '.join(found.ignored)}.")


def _export(options: argparse.Namespace) -> int:
    chosen = {field.name: tuple(getattr(options, field.name)) for field in fields(export.Selection)}
    with _store() as store:
        for name, values in chosen.items():
            possible = export.choices(store, name) if values else []
            if unknown := [value for value in values if value not in possible]:
                raise CommandError(f"There is no {name} {unknown[0]!r}. Possible: {', '.join(possible) or 'none'}.")
        selection = export.Selection(**chosen)
        number = export.count(store, selection)
        if not number:
            raise CommandError("No measurement is of all of these at once; leave out a filter.")
        with _output(options.output) as file:
            export.write(store, options.format, file, selection)
    _say(f"{number} measurements written.")
    return 0


def _report(options: argparse.Namespace) -> int:
    if options.run:
        folders = [folder for folder in _folders() if folder.run_id == options.run]
        if not folders:
            raise CommandError(f"There is no run {options.run!r}; `python -m results runs` lists them.")
    else:
        folders = [folder for folder in journal.published_folders() if folder.run().report == options.name]
    runs = []
    for folder in folders:
        measurements, _, problems = folder.read()
        runs.append((folder.run(), measurements))
        for problem in problems:
            _say(problem)
    sys.stdout.write(report_named(options.name).render(runs))
    return 0


def _runs(_options: argparse.Namespace) -> int:
    with _store() as store:
        counts = dict(store.rows("SELECT run_id, count(*) FROM measurements GROUP BY run_id"))
        for run_id, line, reason in store.problems:
            _say(f"{run_id}, {f'line {line}' if line else 'record'}: {reason}")
    print("run", "source", "condition", "created", "gpu", "measurements", sep="\t")
    for folder in _folders():
        try:
            run = folder.run()
        except JournalError:
            continue  # it is among the problems
        facts = (run.created or "", run.gpu_name or "", counts.get(run.run_id, 0))
        print(run.run_id, run.source, folder.condition(), *facts, sep="\t")
    return 0


def _rebuild(_options: argparse.Namespace) -> int:
    _say(f"{rebuild()} measurements are in the new {journal.home() / 'store.duckdb'}.")
    return 0


def _folders() -> list[RunFolder]:
    own = journal.run_folders(journal.home())
    names = {folder.run_id for folder in own}
    return own + [folder for folder in journal.published_folders() if folder.run_id not in names]


@contextmanager
def _store() -> Iterator[Store]:
    with closing(open_store()) as store:
        if store.notice:
            _say(store.notice)
        yield store


@contextmanager
def _output(name: str | None) -> Iterator[BinaryIO]:
    """Stdout, or a file that appears when it is whole."""
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
        raise CommandError(f"{name} cannot be written: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _complain(sentence: str) -> int:
    _say(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
