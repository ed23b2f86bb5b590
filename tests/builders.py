"""Makers of cases, measurements and runs that tests of several packages share."""

import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from results.checks import Finding, check
from results.compare.verdicts import judge
from results.files.journal import RunFolder
from results.formats import Understanding, import_for_undo
from results.levels import level_of
from results.metrics import METRICS
from results.paths import PUBLISHED
from results.records import (
    DTYPES,
    LENGTHS,
    LEVELS,
    MAX_RAGGED,
    MODES,
    OPTIMIZERS,
    TIMINGS,
    Case,
    Measurement,
    Run,
    Status,
    attention_case,
)
from results.schema import LARGEST_WHOLE
from results.spread import spread
from tests.cases import cases

# A home of runs with known numbers.


def import_understanding(home: Path, found: Understanding, **how: str | bool | None) -> list[str]:
    """Import a file; return the ids of the new runs, so none the second time."""
    return list(import_for_undo(home, found, **how).run_ids)


def small_case(seqlen: int = 128, **changes: object) -> Case:
    """Make a case of the operator that is small in all that is not said."""
    values = {"batch": 1, "num_heads": 2, "head_dim": 64, "dtype": "float16", "causal": True}
    return attention_case(seqlen=seqlen, **(values | changes))


def latency(name: str, value: float | Status, case: Case, *, within: float = 0.0, **facts: object) -> Measurement:
    """Make a latency of an implementation, or the status in place of one.

    `within` is half the 95 % interval of the median, as a share of it; without it there is no spread.
    """
    numbers: dict[str, object] = {"status": value}
    if not isinstance(value, Status):
        numbers = {"status": Status.OK, "value": value, "n": len(facts["samples"]) if "samples" in facts else 3}
        numbers |= {"ci_low": value * (1 - within), "ci_high": value * (1 + within)} if within else {}
    defaults = {"run_id": "", "metric": "latency_ms", "mode": "fwd", "timing": "kernel"}
    return Measurement(case=case, implementation=name, **(defaults | numbers | facts))


def add_run(home: Path, run_id: str, *rows: Measurement, **facts: object) -> None:
    """Write a run of these rows, whatever run they name, into a home."""
    run = Run(**({"run_id": run_id, "source": "local", "gpu_name": "A GPU", "created": "2026-01-01"} | facts))
    RunFolder.create(home, run, [replace(row, run_id=run_id) for row in rows])


# Latencies with the spread, rounds and clocks that a test asks for.

STANDARD = "standard/1"


def timed(ms: float, **fields) -> Measurement:
    """Make a latency with a value and whatever spread is given."""
    given = {"mode": "fwd", "timing": "kernel", "status": Status.OK} | fields
    name = given.pop("implementation", "x")
    return Measurement("r1", given.pop("case", small_case()), name, "latency_ms", value=ms, **given)


def sampled(ms: float, *, rounds: tuple[float, ...] = (1.0, 1.0, 1.0), noise: float = 0.004, seed: int = 0, **fields):
    """Make a latency of ten samples a round; a round is so many times slower than the first."""
    rng = random.Random(seed)
    samples = [ms * factor * math.exp(abs(rng.gauss(0, noise))) for factor in rounds for _ in range(10)]
    found = spread(samples)
    return replace(timed(found["value"], **fields), **found)


def verdict(first: Measurement, second: Measurement, **how) -> str:
    """Return the word for how the second stands to the first."""
    return str(judge(first, second, **how).verdict)


# Rows of one large case on an H200, and what a check finds in them.

H200 = Run(
    *("r1", "local"),
    gpu_name="NVIDIA H200",
    gpu_memory_mb=143_771.0,
    protocol="standard/1",
    measured_tflops={"bfloat16": 700.0, "float32": 50.0, "tf32": 400.0},
)
LARGE = attention_case(batch=2, num_heads=16, seqlen=8192, head_dim=128, dtype="bfloat16", causal=False)
FLOPS_OF_LARGE = 4 * 2 * 16 * 8192**2 * 128  # forward


def row(value: float | None, metric: str = "latency_ms", name: str = "x", *, case: Case = LARGE, **fields):
    """Make a forward's number, in milliseconds unless another metric is given."""
    status = fields.pop("status", Status.OK)
    return Measurement("r1", case, name, metric, status, value=value, **({"mode": "fwd"} | fields))


def printed(text: str, *arguments, **fields):
    """Make a forward's number as a report prints it."""
    return row(float(text.rstrip("x%")), *arguments, printed=text, **fields)


def at(seqlen: int, **fields) -> Case:
    """Make the large case with so many tokens."""
    return replace(LARGE, seqlen_q=seqlen, seqlen_k=seqlen, **fields)


def ms_for(tflops: float, times: float = 1.0) -> float:
    """Return the milliseconds of so many times the large case's forward at a rate."""
    return times * FLOPS_OF_LARGE / tflops / 1e9


def found(rule: str, *rows: Measurement, run: Run = H200) -> list[Finding]:
    """Return what one check finds in rows of a run."""
    return [finding for finding in check([(run, rows)]) if finding.rule == rule]


def noisy(ms: float, name: str = "x", *, spread_by: float, seed: int = 0):
    """Make a row of 30 samples that differ by up to that share."""
    samples = [ms * (1 + spread_by * ((7 * n + seed) % 30) / 30) for n in range(30)]
    numbers = spread(samples)
    return replace(row(numbers["value"], name=name), **numbers)


# Runs of random facts and measurements.

TEXTS = cases(__file__, "TEXTS")  # among them all that a file format could spoil


def chosen(chance: random.Random, test_file: str, name: str) -> dict[str, Any]:
    """Choose a value for each field of a table of tests; "TEXTS" in it is all of them."""
    table = cases(test_file, name)
    choices = {field: [*values, *(TEXTS if "TEXTS" in values else ())] for field, values in table.items()}
    return {field: chance.choice([each for each in values if each != "TEXTS"]) for field, values in choices.items()}


def _random_run(random_: random.Random, run_id: str) -> Run:
    sweep = random_.choice(({}, {"name": "quick", "seqlen": [128, 256], "nested": {"a": None, "b": "="}}))
    return Run(run_id, "local", sweep=sweep, **chosen(random_, __file__, "RUN"))


def _random_measurement(random_: random.Random, run_id: str, number: int) -> Measurement:
    status = random_.choice((Status.OK, Status.OK, *Status))
    ok = status is Status.OK

    numbers: dict[str, object] = {"value": random_.uniform(1e-9, 1e9)} if ok else {}
    if ok and random_.random() < 0.5:
        numbers = spread([random_.uniform(1e-3, 10) for _ in range(random_.choice((3, 7)))])
        numbers |= {"round_sizes": random_.choice(((), (1, 2) if numbers["n"] == 3 else (5, 2)))}

    case = Case(seqlen_q=number + 1, **chosen(random_, __file__, "CASE"))
    numbers |= {"metric": random_.choice(tuple(METRICS)), "mode": random_.choice((None, *MODES))}
    numbers |= {"timing": random_.choice((None, *TIMINGS))} | chosen(random_, __file__, "MEASUREMENT")
    return Measurement(run_id, case, status=status, **numbers)


def random_runs(seed: int, count: int = 3) -> list[tuple[Run, list[Measurement]]]:
    """Make runs of random facts and measurements; their ids differ by number, and by seed."""
    random_ = random.Random(seed)
    names = [f"2026-own_run.{seed}-{number}" for number in range(count)]
    return [
        (_random_run(random_, name), [_random_measurement(random_, name, at) for at in range(40)]) for name in names
    ]


def fill(home: Path, runs: list[tuple[Run, list[Measurement]]]) -> None:
    """Write the folders of the runs."""
    for run, measurements in runs:
        RunFolder.create(home, run, measurements)


def ordered(measurements: list[Measurement]) -> list[Measurement]:
    """Sort measurements in an order that does not depend on where they come from."""
    return sorted(measurements, key=lambda measurement: measurement.measurement_id)


def ids_of(runs: list[tuple[Run, list[Measurement]]]) -> tuple[str, ...]:
    """Return the ids of the runs."""
    return tuple(run.run_id for run, _ in runs)


# Runs of published reports as they are shipped.

COUNTS = cases(__file__, "COUNTS")  # measurements of each run


@cache
def shipped(run_id: str) -> tuple[Run, list[Measurement]]:
    """Read a run and its measurements from its folder."""
    folder = RunFolder(PUBLISHED / run_id)
    return folder.run(), folder.read()[0]


# Headers and a row of the two layouts of tables that an upload can have.

WIDE = "seq_len,d,dtype,PT fwd (ms),PT bwd (ms),TR fwd (ms),TR bwd (ms),Fwd Speedup\n"
LONG = "impl,dtype,seq_len,d_model,batch,is_causal,forward_ms_mean,forward_ms_std\n"
ROW = "torch,bf16,128,64,1,True,0.35,0.01\n"


def odd_rows(chance: random.Random, count: int, run_id: str = "r1") -> list[Measurement]:
    """Make latencies of all levels with sizes that no device has, each allowed by the records."""

    def size() -> int:
        return chance.choice((1, 2, 7, 64, 4096, 65_536, 1_000_003, LARGEST_WHOLE))

    rows = []
    while len(rows) < count:
        level, heads, lengths = level_of(chance.choice(LEVELS)), size() // 4 or 1, chance.choice((None, *LENGTHS))
        sizes = ("batch", "seqlen_q", "seqlen_k", "head_dim", "head_dim_v", "num_layers")
        fields = {name: chance.choice((None, size(), size())) for name in sizes}
        fields |= {name: chance.choice((None, 0, size())) for name in ("window_size", "page_size", "latent_dim")}
        if lengths == "ragged":
            fields["batch"] = min(fields["batch"] or 1, MAX_RAGGED)
        case = Case(
            *(level.name, chance.choice((None, *level.subjects))),
            num_heads=heads * chance.choice((1, 4)),
            num_kv_heads=heads,
            dtype=chance.choice((None, *DTYPES)),
            cache_dtype=chance.choice((None, *DTYPES)),
            causal=chance.choice((None, True, False)),
            optimizer=chance.choice((None, *OPTIMIZERS)),
            lengths=lengths,
            **fields,
        )
        value = chance.choice((1e-6, chance.uniform(0.01, 100), 1e8))
        row = timed(value, case=case, mode=chance.choice((None, *level.modes)))
        rows.append(replace(row, run_id=run_id))
    return rows
