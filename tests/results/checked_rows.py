"""Rows of one case, printed or measured, and what a rule finds in them."""

from dataclasses import replace

from results.checks import Finding, check
from results.records import Case, Measurement, Run, Status, attention_case
from runner.measure.stopwatch import spread

H200 = Run(
    *("r1", "local"),
    gpu_name="NVIDIA H200",
    gpu_memory_mb=143_771.0,
    protocol="standard/1",
    measured_tflops={"bfloat16": 700.0, "float32": 50.0, "tf32": 400.0},
)
CASE = attention_case(batch=2, num_heads=16, seqlen=8192, head_dim=128, dtype="bfloat16", causal=False)
FLOPS = 4 * 2 * 16 * 8192**2 * 128  # forward


def row(value: float | None, metric: str = "latency_ms", name: str = "x", *, case: Case = CASE, **fields):
    """A forward's number, in milliseconds unless another metric is given."""
    status = fields.pop("status", Status.OK)
    return Measurement("r1", case, name, metric, status, value=value, **({"mode": "fwd"} | fields))


def printed(text: str, *arguments, **fields):
    """The same as a report prints it."""
    return row(float(text.rstrip("x%")), *arguments, printed=text, **fields)


def at(seqlen: int, **fields) -> Case:
    """The case with so many tokens."""
    return replace(CASE, seqlen_q=seqlen, seqlen_k=seqlen, **fields)


def ms_for(tflops: float, times: float = 1.0) -> float:
    """Milliseconds of a case of so many times the forward's arithmetic at a rate."""
    return times * FLOPS / tflops / 1e9


def found(rule: str, *rows: Measurement, run: Run = H200) -> list[Finding]:
    """What one rule finds in rows of a run."""
    return [finding for finding in check([(run, rows)]) if finding.rule == rule]


def noisy(ms: float, name: str = "x", *, spread_by: float, seed: int = 0):
    """A row of 30 samples that differ by up to that share."""
    samples = [ms * (1 + spread_by * ((7 * n + seed) % 30) / 30) for n in range(30)]
    numbers = spread(samples)
    return replace(row(numbers["value"], name=name), **numbers)
