"""The command line, `python -m runner COMMAND`: data on stdout, progress and errors on stderr."""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from results.commands import parser_of
from results.compare import against
from results.files.cell_files import ENDINGS
from results.files.journal import JournalError, RunFolder, home
from results.programs import ProgramError, load, shipped
from results.recommend.rule_file import RuleError
from runner import record, sweeps, tune
from runner.launch import CLUSTER_MODES, RUN_ID, ClusterChoice, cases_of, to_confirm
from runner.launchers import cluster
from runner.launchers import ray as launcher
from runner.locks import DeviceBusy, device_lock
from runner.overhead import sentence
from runner.progress import Progress
from runner.protocol import PAIRED, PROTOCOLS, TUNE, Protocol, protocol_of
from runner.supervise.job import Cancelled, Job, Refused, SweepFailed
from runner.supervise.other_version import OtherVersion, find
from runner.supervise.supervisor import supervise
from runner.supervise.worker_handle import COMMAND
from runner.sweeps import Sweep, SweepError
from runner.sweeps.grid import split_heads

EXIT_UNFINISHED, EXIT_ARGUMENTS, EXIT_BUSY, EXIT_CANCELLED = 1, 2, 3, 130
# Options that plan a run, which --resume does not take.
_PLANNED = (
    "sweep", "cases_of", "program", "sweeps", "device", "implementations", "features", "set", "protocol", "seed",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = options.do(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of stdout closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Refused, SweepError, ProgramError) as error:
        return _complain(error, EXIT_ARGUMENTS)
    except DeviceBusy as error:
        return _complain(error, EXIT_BUSY)
    except (SweepFailed, JournalError, RuleError) as error:
        return _complain(error, EXIT_UNFINISHED)
    except Cancelled as cancelled:
        return _complain(_how_to_go_on(cancelled.args), EXIT_CANCELLED)
    except KeyboardInterrupt:
        return EXIT_CANCELLED


def _parser() -> argparse.ArgumentParser:
    commands = {"list": _list, "plan": _plan, "run": _run, "record": _record, "tune": _run, "prove": _prove}
    return parser_of(
        Path(__file__).with_name("commands.toml"),
        commands | {"warm": _warm, "shapes": _shapes},
        texts={"modes": CLUSTER_MODES},
        groups={"presets": [_preset(protocol) for protocol in PROTOCOLS.values()]},
        prog="python -m runner",
        description="Measure attention implementations.",
    )


def _preset(protocol: Protocol) -> dict[str, Any]:
    about = f"{protocol.rounds} round(s), about {protocol.cap_ms:.0f} ms of sampling per number"
    about += f", then a trace of {protocol.trace_s:.0f} s" if protocol.trace_s else ""
    name = protocol.name
    return {"flags": [f"--{name}"], "dest": "protocol", "action": "store_const", "const": name, "help": about}


def _list(options: argparse.Namespace) -> int:
    if options.on or options.address:
        cluster.show(cluster.describe(options.address), as_json=options.json)
        return 0
    from runner import listing  # imports torch, which takes seconds, and which `run` must not load in this process

    listing.show_list(home(), options.device, as_json=options.json)
    return 0


def _record(options: argparse.Namespace) -> int:
    return record.record(options.command, options.output, options.name)


def _prove(options: argparse.Namespace) -> int:
    if options.steps is not None:
        return _prove_steps(options)
    if bool(options.program) == bool(options.command):
        raise Refused("Give one thing to prove: a script, --program with a recording, or --steps for whole steps.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.program or f"{folder}/recording.json")
        if options.command:
            record.record(options.command, path, None)
        program = load(path)
    with _held(options, "a proof") as target:
        from runner import prove

        _check_known("default", options.baseline)
        proofs = prove.prove(program, target.id, PROTOCOLS["quick"], options.baseline)
    print(prove.as_json(program, proofs) if options.json else prove.as_text(program, proofs))
    return 0


@contextlib.contextmanager
def _held(options: argparse.Namespace, what: str) -> Iterator[Any]:
    """Hold the device of a command within the block, and set Triton up for it. Raises Refused or DeviceBusy."""
    from runner import listing

    target = listing.resolve(options.device)
    with device_lock(home(), target.lock, what):
        yield target


def _prove_steps(options: argparse.Namespace) -> int:
    from runner import steps

    models = steps.load(Path(options.steps or steps.SHIPPED), options.only.split(",") if options.only else None)
    proofs = []
    with _held(options, "a proof") as target:
        for proof in steps.prove(models, target.id, compiled=options.compiled):
            proofs.append(proof)
            print(json.dumps(dataclasses.asdict(proof)) if options.json else steps.as_line(proof), flush=True)
    print(steps.as_summary(proofs), file=sys.stderr if options.json else sys.stdout)
    return 0 if any(proof.ratio for proof in proofs) else EXIT_UNFINISHED


def _check_known(ours: str, *names: str) -> None:
    from kernels import registry

    known = (ours, *registry.implementations())
    if unknown := [name for name in names if name not in known]:
        raise Refused(f"Unknown implementation {unknown[0]!r}. Possible: {', '.join(known)}.")


def _warm(options: argparse.Namespace) -> int:
    program = load(Path(options.program))
    with _held(options, "filling the compile cache") as target:
        from runner import new_shapes

        print(new_shapes.warm(program, target.id))
    return 0


def _shapes(options: argparse.Namespace) -> int:
    from runner import new_shapes
    from runner.validate.features import add_entry, facts

    names = _names(options) or new_shapes.IMPLEMENTATIONS
    _check_known(new_shapes.OURS, *names)
    heads, kv_heads = split_heads(options.heads)
    wanted = new_shapes.lengths(options.count, options.longest)
    call = (wanted, (options.batch, heads, kv_heads, options.head_dim), options.dtype)
    with _held(options, "new shapes") as target:
        found = [dataclasses.asdict(each) for each in new_shapes.compared(names, *call, target.id)]
    print(json.dumps(found, indent=1))
    if options.record:
        sizes = {name: getattr(options, name) for name in ("count", "longest", "batch", "heads", "head_dim", "dtype")}
        add_entry(options.record, target.name, facts(target) | sizes, found)
    return 0 if len(found) == 2 * len(names) else EXIT_UNFINISHED


def _several(options: argparse.Namespace) -> int | None:
    """Do a command for each of several sweeps, or a tune for each level; return the first code that is not 0.

    None where there is one of them.
    """
    parts: list[dict[str, Any]] = [{"sweep": name} for name in _words(options.sweep)]
    if "program" in options:
        levels = tune.by_level(options.program, _words(options.sweeps))
        parts = [{"program": programs, "sweeps": ",".join(names), "levels": len(levels)} for programs, names in levels]
    if len(parts) < 2:
        return None
    if options.set or any(getattr(options, name, None) for name in ("run_id", "resume")):
        raise Refused("--run-id, --resume and --set belong to one sweep; name one instead of several.")
    if "program" in options and options.implementations:
        raise Refused("--implementations belongs to one level; tune programs and decode separately with it.")
    for name in _words(options.sweep):  # no name is unknown before anything is done
        sweeps.get(name)
    codes = []
    for part in parts:
        try:
            codes.append(options.do(argparse.Namespace(**{**vars(options), **part})))
        except tune.OutOfTime as over:
            codes.append(_complain(_how_to_go_on(over.args), EXIT_CANCELLED))
    return next(filter(None, codes), 0)


def _words(listed: str | None) -> list[str]:
    return [name.strip() for name in (listed or "").split(",") if name.strip()]


def _plan(options: argparse.Namespace) -> int:
    if (code := _several(options)) is not None:
        return code
    sweep = _chosen(options)
    from runner import listing

    what = sweep, options.device, _names(options), protocol_of(options.protocol or sweep.protocol), options.seed
    listing.show_plan(*what, capabilities=tuple(_words(options.features)), as_json=options.json)
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.step_limit is not None and not options.step_limit > 0:  # nor is nan
        raise Refused(f"--step-limit {options.step_limit:g} is not a number of seconds above 0.")
    if (code := _several(options)) is not None:
        return code
    job = _resumed(options) if options.resume else _new(options)
    progress = Progress()
    command = tuple(shlex.split(os.environ.get("ATTNBENCH_WORKER", ""))) or COMMAND  # tests bring their own worker
    with _stop_signals() as signalled, _budget(job, signalled, options) as stop:
        if (where := _cluster(options, job)) is not None:
            folders = launcher.measure(job, home(), where, progress=progress, stop=stop, worker_command=command)
        else:
            folders = [supervise(job, home(), progress=progress, stop=stop, worker_command=command)]
    for folder in folders:
        print(folder.run_id)
        if job.against:
            print(against.in_words(against.compare_versions(folder.run(), folder.read()[0])))
        progress.say(f"Every cell has a status; numbers are in {folder.journal_path}.")
        if job.sweep.name == tune.NAME:
            tune.finish(folder, getattr(options, "export", None))
        if costs := folder.costs():
            progress.say(sentence(costs))
    _ingest()
    return 0


def _cluster(options: argparse.Namespace, job: Job) -> ClusterChoice | None:
    """Return the cluster to measure on; None for this machine. A resumed run uses the one it was started on."""
    asked = _cluster_of(options)
    words = shlex.split(job.command(""))
    if not job.resume or not (asked or "--on" in words):
        return asked
    if "--on" not in words:
        raise Refused(f"Run {job.resume!r} was measured on this machine alone; resume it without a cluster.")
    before = _cluster_of(_parser().parse_args(words[words.index("run") :]))
    return dataclasses.replace(
        before,
        address=options.address or before.address,
        gpus=options.gpus or ("1" if before.mode == "each" else before.gpus),
        one_per_host=options.one_per_host or before.one_per_host,
    )


def _new(options: argparse.Namespace) -> Job:
    if options.run_id is not None and not RUN_ID.fullmatch(options.run_id):
        raise Refused(f"--run-id {options.run_id[:80]!r} is not a plain name of letters, digits, dots and dashes.")
    sweep = _chosen(options)
    other = _other_version(options)
    usual = PAIRED.name if other and sweep.protocol in PROTOCOLS else sweep.protocol
    protocol = options.protocol or usual
    protocol = TUNE.name if (sweep.name, protocol) == (tune.NAME, "quick") else protocol
    if other and protocol_of(protocol).trace_s:
        raise Refused(f"--against compares rounds, and --{protocol} takes only one; omit it.")
    return Job(
        sweep=sweep,
        device=options.device,
        implementations=_names(options),
        capabilities=tuple(_words(options.features)),
        protocol=protocol,
        seed=options.seed,
        run_id=options.run_id,
        step_limit_s=options.step_limit,
        files=tuple(dict.fromkeys(options.files)),
        against=other,
        command=lambda device: _command(options, device, protocol, other),
    )


def _chosen(options: argparse.Namespace) -> Sweep:
    """Return the named sweep with the axes of --set, or the one over the cases of a run, a rule or a recording."""
    if options.do is _run and "program" in options:
        wanted = _words(options.sweeps)
        if not wanted and not options.program:
            raise Refused(
                "Name what to tune: --program FILE, a recording of `python -m runner record` or one of "
                f"results/programs/ ({', '.join(program.path.stem for program in shipped())}), or --sweep real_models."
            )
        return _of_programs(options.program, wanted, options.tiles, tune.NAME)
    if options.cases_of:
        if options.sweep or options.set:
            raise Refused("--cases-of measures the cases of a run unchanged; omit the sweep and --set.")
        sweep, left = cases_of(options.cases_of, home())
        for sentence in left:
            print(f"Left out: {sentence}", file=sys.stderr)
        return sweep
    if (options.sweep or "").endswith(".json"):
        if options.set:
            raise Refused("The calls of a recording are measured unchanged; omit --set.")
        return _of_programs([options.sweep])
    if not options.sweep:
        names = ", ".join(sorted(sweeps.SWEEPS))
        raise Refused(f"Name a sweep, or a run by --resume or --cases-of. Sweeps: {names}.")
    return sweeps.override(sweeps.get(options.sweep), sweeps.changes_of(options.set))


def _of_programs(paths: Sequence[str], *asked: Any) -> Sweep:
    """Return the sweep over the calls of recordings, and say what it leaves out; `asked` as for `tune.sweep_of`."""
    sweep, left = tune.sweep_of([load(Path(path)) for path in paths], *asked)
    print(*left, sep="\n", end="\n" if left else "", file=sys.stderr)
    return sweep


def _other_version(options: argparse.Namespace) -> OtherVersion | None:
    if options.against is None and options.against_python is None:
        return None
    if _cluster_of(options):
        raise Refused("--against compares two versions on a GPU of this machine; omit the cluster options.")
    return find(options.against, options.against_python)


def _resumed(options: argparse.Namespace) -> Job:
    if any(getattr(options, name, None) for name in _PLANNED):
        raise Refused("--resume continues the run as it was planned; omit the sweep and all other choices.")
    try:
        run = RunFolder.open(home(), options.resume).run()
    except JournalError as error:
        raise Refused(str(error)) from error
    if run.source != "local":
        raise Refused(f"Run {options.resume!r} was not measured here (source {run.source}); start a new run.")
    try:
        words = shlex.split(run.command or "")
        begun = min(words.index(verb) for verb in ("run", "tune") if verb in words)
        device = words[words.index("--device", begun) + 1]  # refuses runs of runner.validate
        sweep = sweeps.from_json(run.sweep)
        sweep.cases()
        protocol = protocol_of((run.protocol or "").split("/")[0]).name
        before, _ = _parser().parse_known_args(words[begun:])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Refused(f"Run {options.resume!r} does not record how it was started; start a new run.") from None
    _check_confirmed(options, before)
    return Job(
        sweep=sweep,
        device=device,
        implementations=sweep.implementations,  # implementations that are no longer installed get a status
        protocol=protocol,
        seed=run.seed or 0,
        resume=options.resume,
        step_limit_s=options.step_limit,
        files=tuple(kind for kind in ENDINGS if f"--{kind}" in words),
        against=_other_version(before) if run.against else None,
        command=lambda device: run.command or "",
    )


def _check_confirmed(options: argparse.Namespace, before: argparse.Namespace) -> None:
    """Refuse to execute a program or to connect to an address that only the run's record names."""
    named, given = to_confirm(before), to_confirm(options)
    if before.address and options.address:
        given += (f"--address={before.address}",)  # the cluster may have another address by now
    if missing := [word for word in named if word not in given]:
        words = shlex.join(("--resume", options.resume, *missing))
        raise Refused(
            f"The record of run {options.resume!r} asks for {' '.join(missing)}. A run folder can come from anybody; "
            f"if you trust it, repeat that: python -m runner run {words}"
        )
    if options.against not in (None, before.against) or options.against_python not in (None, before.against_python):
        raise Refused("--resume continues the run as it was planned; omit the sweep and all other choices.")


def _command(options: argparse.Namespace, device: str, protocol: str, other: OtherVersion | None) -> str:
    what = ["run", *(["--cases-of", options.cases_of] if options.cases_of else [options.sweep])]
    if "program" in options:
        what = ["tune", *(word for path in options.program for word in ("--program", path))]
        what += ["--sweep", options.sweeps] if options.sweeps else []
        what += ["--tiles"] if options.tiles else []
    words = ["python", "-m", "runner", *what, "--device", device or options.device or "cuda"]
    protocol = "quick" if protocol == TUNE.name else protocol
    words += [f"--{protocol}"] if protocol in PROTOCOLS else []
    words += other.words if other else ()
    words += ["--implementations", options.implementations] if options.implementations else []
    words += ["--features", options.features] if options.features else []
    words += [word for change in options.set for word in ("--set", change)]
    words += ["--seed", str(options.seed)] if options.seed else []
    words += [f"--{kind}" for kind in dict.fromkeys(options.files)]
    where = _cluster_of(options)
    return shlex.join([*words, *(where.words if where else ())])


def _cluster_of(options: argparse.Namespace) -> ClusterChoice | None:
    """Return the cluster that options select; None for this machine."""
    given = {name: getattr(options, name) for name in ("address", "gpus", "mode", "one_per_host")}
    chosen = {name: value for name, value in given.items() if value}
    return ClusterChoice(**chosen) if options.on or chosen else None


def _names(options: argparse.Namespace) -> tuple[str, ...] | None:
    if options.implementations is None:
        return None
    names = tuple(_words(options.implementations))
    if not names:
        raise Refused("--implementations is empty; give a comma-separated list, such as torch_naive,triton_fa2.")
    return names


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Record SIGINT and SIGTERM as a request to stop, which the sweep reads between messages."""
    seen: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: seen.append(number)) for number in signals}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _budget(job: Job, signalled: Callable[[], bool], options: argparse.Namespace) -> Iterator[Callable[[], bool]]:
    """End a quick tune in time, with a rule of what it has measured by then."""
    quick = job.sweep.name == tune.NAME and job.protocol == TUNE.name and not job.resume
    seconds = tune.QUICK_S / options.levels if quick else float("inf")
    ends = time.monotonic() + seconds
    try:
        yield lambda: signalled() or time.monotonic() >= ends
    except Cancelled as cancelled:
        if cancelled.args and time.monotonic() >= ends and not signalled():
            folder = RunFolder.open(home(), cancelled.args[0])
            state = folder.read_state()
            left = f"{state.done} of {state.total} cells" if state else "a part"
            print(f"{seconds / 60:g} minutes are over: {left} measured, the heaviest first.", file=sys.stderr)
            tune.finish(folder, options.export)
            raise tune.OutOfTime(*cancelled.args) from None
        raise


def _ingest() -> None:
    """Load the new numbers into the database if it can be opened; otherwise its readers load them later."""
    try:
        from results.store.database import StoreError, open_store
    except ImportError:  # no duckdb on a bare GPU node
        return
    with contextlib.suppress(StoreError), contextlib.closing(open_store()) as store:
        if store.notice is None:
            store.refresh()


def _how_to_go_on(run_ids: Sequence[str]) -> str:
    if not run_ids:
        return "Cancelled; there are no measurements."
    commands = "; ".join(f"python -m runner run --resume {run_id}" for run_id in run_ids)
    return f"Cancelled; the measurements are kept. To resume: {commands}"


def _complain(error: object, code: int) -> int:
    print(error, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
