"""Recordings: the problems of attention that a program computes, and how often. JSON files, read without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.paths import REPOSITORY
from results.records import Case, RecordError, attention_case

FORMAT, VERSION = "attnbench recording", 1
SHIPPED = REPOSITORY / "results" / "programs"  # recordings of well-known models
MOST_BYTES = 4 << 20
MODES = {"forward": "fwd", "training": "fwd_bwd"}  # by direction
TIMINGS = {"eager": "eager", "captured": "kernel"}  # by regime
_PACKED = "varlen"  # sequences one after the other, whose lengths a sweep draws around their mean
_SIZES = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim")


class ProgramError(ValueError):
    """A recording that cannot be read; the message says why."""


@dataclass(frozen=True)
class Call:
    """A problem, with the fields of `kernels.problem.Problem`, and how often a program computes it."""

    problem: Mapping[str, Any]
    count: int
    modules: tuple[str, ...] = ()  # classes of the modules that call it, where the recording has them
    scales: tuple[float, ...] = ()  # of the scores, where calls name them

    @property
    def mode(self) -> str:
        """Return the mode that measures it."""
        return MODES[self.problem.get("direction", "forward")]

    @property
    def timing(self) -> str:
        """Return the timing that its program pays for."""
        return TIMINGS[self.problem.get("regime", "eager")]

    @property
    def reason(self) -> str | None:
        """Return why no sweep measures it; None if one does."""
        if self.problem.get("operator", "attention") != "attention":
            return f"{self.problem['operator']} calls"
        packed = self.problem.get("seqlen_q") == self.problem.get("seqlen_k") and _PACKED
        asked = [name for name in self.problem.get("features", ()) if name not in ("head_dim_v", packed)]
        return f"calls with {' and '.join(asked)}" if asked else None

    @property
    def fallback(self) -> str | None:
        """Return why fast backends of PyTorch's SDPA silently leave it to slower ones; None if they take it.

        What they take is declared in kernels/attention/torch_sdpa.py.
        """
        found, features = self.problem, self.problem.get("features", ())
        dtype, head_dim = found.get("dtype"), found.get("head_dim")
        reasons = {
            "a window, which SDPA takes as a mask": found.get("window_size"),
            "a mask": "mask" in features,
            str(dtype): dtype not in ("bfloat16", "float16"),
            "head_dim_v other than head_dim": "head_dim_v" in features,
            "head_dim above 256": isinstance(head_dim, int) and head_dim > 256,
        }
        said = [words for words, there in reasons.items() if there]
        if not said or found.get("operator", "attention") != "attention":
            return None
        grouped = found.get("num_heads") != found.get("num_kv_heads")
        more = ", and shared key heads rule out the memory-efficient one" if grouped else ""
        return f"{' and '.join(said)} rule{'s' * (len(said) == 1)} out the flash backend{more}"

    @property
    def case(self) -> Case:
        """Return the case that measures it."""
        found = self.problem
        sizes = {name: found[name] for name in _SIZES if name != "seqlen_q"}
        more = {"head_dim_v": found.get("head_dim_v"), "window_size": found.get("window_size", 0)}
        more["features"] = f"{_PACKED}=skewed" if _PACKED in found.get("features", ()) else None
        causal = found["mask"].startswith("causal")
        return attention_case(seqlen=found["seqlen_q"], dtype=found["dtype"], causal=causal, **sizes, **more)


@dataclass(frozen=True)
class Program:
    """A recording. `path` is its file."""

    path: Path
    name: str
    calls: tuple[Call, ...]
    source: str = ""  # where the sizes come from
    unseen: Mapping[str, int] | None = None
    steps: int | None = None  # steps of optimizers that were recorded; None: the recording is one step

    @property
    def span(self) -> str:
        """Return in words what times are added up over: a step, or all of a program that trains nothing."""
        return "in the whole recording" if self.steps == 0 else "a step"

    def often(self, call: Call) -> float:
        """Return how often the span has a call; a whole number where it is one."""
        whole, rest = divmod(call.count, self.steps or 1)
        return call.count / (self.steps or 1) if rest else whole

    @property
    def tuned(self) -> tuple[Call, ...]:
        """Return the calls that a sweep measures."""
        return tuple(call for call in self.calls if call.reason is None)

    @property
    def left_out(self) -> list[str]:
        """Return sentences on the calls that no sweep measures, and on what was not seen."""
        counts: dict[str, int] = {}
        for call in self.calls:
            if call.reason:
                counts[call.reason] = counts.get(call.reason, 0) + call.count
        measured = [
            f"{count} {reason}: no sweep measures these, so today's choice stays." for reason, count in counts.items()
        ]
        return measured + [f"Not recorded: {count} {words}." for words, count in (self.unseen or {}).items()]


def load(path: Path) -> Program:
    """Return the recording in a file. Raises ProgramError."""
    try:
        with path.open("rb") as file:
            return parse(path, file.read(MOST_BYTES + 1))
    except OSError as fault:
        raise ProgramError(f"The recording {path} cannot be read: {fault.strerror or fault}.") from fault


def parse(path: Path, data: bytes) -> Program:
    """Return the recording in the content of a file. Raises ProgramError."""
    if len(data) > MOST_BYTES:
        raise ProgramError(f"{path} has more than {MOST_BYTES >> 20} MB and is no recording.")
    try:
        return _parsed(path, json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        if isinstance(fault, ProgramError):
            raise
        said = " ".join(str(fault).split())
        raise ProgramError(f"{path} is not a recording ({type(fault).__name__}: {said}).") from fault


def shipped() -> list[Program]:
    """Return the recordings that come with the repository."""
    return [load(path) for path in sorted(SHIPPED.glob("*.json"))]


def as_text(name: str, source: str, record: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return a recording as JSON with one call on a line; `record` is that of `kernels.recorder.Recording`."""
    head = {"format": FORMAT, "version": VERSION, "program": name, "source": source, "versions": dict(versions)}
    head["steps"] = record["steps"]
    lines = ",\n  ".join(map(json.dumps, record["calls"]))
    return f'{json.dumps(head | {"unseen": record["unseen"]}, indent=1)[:-2]},\n "calls": [\n  {lines}\n ]\n}}\n'


def _parsed(path: Path, record: Any) -> Program:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ProgramError(f"{path} is not a recording; `python -m runner record` writes one.")
    if record.get("version") != VERSION:
        raise ProgramError(f"{path} has version {record.get('version')!r}; this attnbench reads version {VERSION}.")
    calls = tuple(map(_call, record["calls"]))
    unseen = {str(words): int(count) for words, count in (record.get("unseen") or {}).items()}
    steps = record.get("steps")
    if steps is not None and (type(steps) is not int or steps < 0):
        raise ProgramError(f"steps are a whole number from 0 on, not {steps!r}")
    return Program(path, str(record["program"]), calls, str(record.get("source") or ""), unseen, steps)


def _call(record: Mapping[str, Any]) -> Call:
    count, scales = record["count"], tuple(map(float, record.get("scales", ())))
    if type(count) is not int or count < 1:
        raise ProgramError(f"a count is a whole number from 1 on, not {count!r}")
    call = Call(dict(record["problem"]), count, tuple(map(str, record.get("modules", ()))), scales)
    if call.mode and call.timing and call.reason is None:
        try:
            assert call.case
        except RecordError as fault:
            raise ProgramError(str(fault)) from fault
    return call
