"""Runs of random facts and measurements, among them all that a file format could spoil."""

import random
from pathlib import Path

from results.files.journal import RunFolder
from results.metrics import METRICS
from results.records import MODES, TIMINGS, Case, Measurement, Run, Status

TEXTS = (
    "plain",
    "=SUM(A1)",
    "+1",
    "-",
    "@x",
    "'quoted'",
    "''",
    "\ttabbed",
    'with "quotes", commas; and | pipes',
    "two\nlines",
    "<script>alert(1)</script>",
    "Grüße 東京 🚀",
    " spaces ",
    "None",
    "1e5",
)


def _run(random_: random.Random, run_id: str) -> Run:
    return Run(
        run_id=run_id,
        source="local",
        created="2026-03-04T05:06:07+00:00",
        title=random_.choice(TEXTS),
        gpu_name=random_.choice((None, *TEXTS[:4], "NVIDIA H200")),
        sm_count=random_.choice((None, 132)),
        gpu_memory_mb=random_.choice((None, 143771.0, 0.1)),
        git_dirty=random_.choice((None, True, False)),
        seed=random_.choice((None, 0, 2**40)),
        notes=random_.choice((None, *TEXTS)),
        sweep=random_.choice(({}, {"name": "quick", "seqlen": [128, 256], "nested": {"a": None, "b": "="}})),
    )


def _measurement(random_: random.Random, run_id: str, number: int) -> Measurement:
    status = random_.choice((Status.OK, Status.OK, *Status))
    ok = status is Status.OK

    def maybe() -> float | None:
        return random_.choice((None, random_.uniform(0, 10), 1e-30, 3.0)) if ok else None

    return Measurement(
        run_id=run_id,
        case=Case(
            level=random_.choice((None, "op", "model")),
            subject=random_.choice((None, "attention", "llama2-7b")),
            batch=random_.choice((None, 1, 8)),
            num_heads=random_.choice((None, 32)),
            num_kv_heads=random_.choice((None, 8)),
            seqlen_q=number + 1,
            dtype=random_.choice((None, "bfloat16", "float8_e4m3fn")),
            causal=random_.choice((None, True, False)),
            window_size=random_.choice((None, 0, 128)),
        ),
        implementation=random_.choice(("triton_fa2", *TEXTS)),
        metric=random_.choice(tuple(METRICS)),
        status=status,
        mode=random_.choice((None, *MODES)),
        timing=random_.choice((None, *TIMINGS)),
        baseline=random_.choice((None, "torch_naive")),
        value=random_.uniform(1e-9, 1e9) if ok else None,
        statistic=random_.choice((None, "median")),
        mean=maybe(),
        std=maybe(),
        ci_low=maybe(),
        n=random_.choice((None, 50)),
        samples=tuple(random_.random() for _ in range(random_.choice((0, 3)))),
        note=random_.choice((None, *TEXTS)),
        flags=random_.choice(((), ("throttled", "a,b"))),
        printed=random_.choice((None, *TEXTS)),
        origin=random_.choice((None, *TEXTS)),
        time=random_.choice((None, "2026-03-04T05:06:07.123456+00:00")),
    )


def random_runs(seed: int, count: int = 3) -> list[tuple[Run, list[Measurement]]]:
    """Their ids differ by number, and by seed."""
    random_ = random.Random(seed)
    names = [f"2026-own_run.{seed}-{number}" for number in range(count)]
    return [(_run(random_, name), [_measurement(random_, name, at) for at in range(40)]) for name in names]


def fill(home: Path, runs: list[tuple[Run, list[Measurement]]]) -> None:
    """Write their folders."""
    for run, measurements in runs:
        RunFolder.create(home, run, measurements)


def ordered(measurements: list[Measurement]) -> list[Measurement]:
    """In an order that does not depend on where they come from."""
    return sorted(measurements, key=lambda measurement: measurement.measurement_id)


def ids_of(runs: list[tuple[Run, list[Measurement]]]) -> tuple[str, ...]:
    """The runs' ids."""
    return tuple(run.run_id for run, _ in runs)
