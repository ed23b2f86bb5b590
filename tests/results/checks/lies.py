"""Planted lies, and whether a check catches each: python -m tests.results.checks.lies

Every lie is a sound run of an H100 with one thing changed, as a slip, a wrong unit or a boast would change it. The run
without a lie has no finding. What the tables cannot know to be a lie is planted too, and printed as missed with the
reason.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from results import levels
from results.checks import check
from results.levels.tensors import tensor_bytes
from results.records import Case, Measurement, Run, Status, attention_case, case_to_json, decode_case

SEQLENS = (1024, 2048, 4096, 8192)
NAMES = {"torch_naive": 60.0, "torch_sdpa_flash": 350.0, "triton_fa2": 420.0}  # TFLOP/s of a forward
SHARE = {"fwd": 1.0, "bwd": 0.8, "fwd_bwd": 0.85}
RUN = Run("r1", "upload", gpu_name="NVIDIA H100 80GB HBM3", gpu_memory_mb=81_559.0, power_limit_w=700.0)
Rows = list[Measurement]


@dataclass(frozen=True)
class Lie:
    """What is claimed, the rows and the run that claim it."""

    name: str
    rows: Rows
    run: Run = RUN
    known: Sequence[tuple[Run, Rows]] = ()  # other runs that are here
    unseen: str = "nobody has said why"  # why no rule can know it to be a lie


def case_of(seqlen: int, **changes: object) -> Case:
    """Make a forward of 8 x 16 heads."""
    given = {"batch": 8, "num_heads": 16, "head_dim": 128, "dtype": "bfloat16", "causal": False}
    return attention_case(seqlen=seqlen, **(given | changes))


def sound() -> Rows:
    """Make the rows of a run that says nothing wrong: times, plain calls, memory, errors, energy."""
    rows = []
    for seqlen in SEQLENS:
        for name, rate in NAMES.items():
            rows += _sound_cell(case_of(seqlen), name, rate)
    return rows


def _sound_cell(case: Case, name: str, rate: float) -> Rows:
    sizes, scores = tensor_bytes(case_to_json(case)), 2.0 * 8 * 16 * case.seqlen_q**2
    matrices = 2 * scores if name == "torch_naive" else 0.0
    rows = []
    for at, mode in enumerate(SHARE):
        odd = 1 + (7 * len(name) + at) / 997 + case.seqlen_q / 1e6  # so that no two rows are alike
        ms = levels.flops(case, mode) / rate / SHARE[mode] / 1e9 * odd
        spread = {"n": 30, "std": ms / 300, "statistic": "median"}
        rows.append(_row(case, name, ms, mode=mode, timing="kernel", **spread))
        rows.append(_row(case, name, ms * 1.02 + 0.01, mode=mode, timing="eager", **spread))
    peak = (sizes.q + sizes.k + sizes.v + sizes.out + matrices) / 2**20
    rows.append(_row(case, name, peak, metric="peak_memory_mb", mode="fwd"))
    rows.append(_row(case, name, 2e-3, metric="error_out", mode="fwd"))
    rows.append(_row(case, name, 0.6 * rows[0].value, metric="energy_j", mode="fwd"))
    return rows


def _row(case: Case, name: str, value: float, *, metric: str = "latency_ms", **fields: object) -> Measurement:
    return Measurement("r1", case, name, metric, Status.OK, value=value, **fields)


def changed(change: Callable[[Measurement], float | None], rows: Iterable[Measurement] | None = None) -> Rows:
    """Return the sound rows with the value that `change` gives; None leaves a row as it is."""
    found = []
    for m in sound() if rows is None else rows:
        value = change(m)
        found.append(m if value is None else replace(m, value=value, std=m.std and m.std * value / m.value))
    return found


def only(where: str, factor: float, *, name: str = "triton_fa2", seqlen: int | None = None) -> Rows:
    """Return the sound rows with one implementation's numbers of a mode, timing or metric multiplied."""

    def change(m: Measurement) -> float | None:
        said = (m.mode, m.timing, m.metric, f"{m.mode} {m.timing}")
        hit = m.implementation == name and where in said and seqlen in (None, m.case.seqlen_q)
        return m.value * factor if hit and (where not in ("fwd", "bwd") or m.metric == "latency_ms") else None

    return changed(change)


def with_case(**changes: object) -> Rows:
    """Return the sound rows with fields of their cases changed."""
    return [replace(m, case=replace(m.case, **changes)) for m in sound()]


def on(gpu: str | None, tflops: float, **case: object) -> Lie:
    """Return one forward at that rate on a GPU named so."""
    of = case_of(4096, **case)
    row = _row(of, "boast", levels.flops(of, "fwd") / tflops / 1e9, mode="fwd")
    return Lie(f"{tflops:g} TFLOP/s in {of.dtype} on {gpu}", [row], Run("r1", "upload", gpu_name=gpu))


def copied(key: Callable[[Measurement], object], source: object, target: object) -> Rows:
    """Return the sound rows where those of `target` have the values of those of `source`."""
    rows = [m for m in sound() if m.metric == "latency_ms"]
    place = lambda m: (m.case.seqlen_q, m.timing, *(f for f in (m.implementation, m.mode) if f != key(m)))  # noqa: E731
    values = {place(m): m.value for m in rows if key(m) == source}
    return [replace(m, value=values[place(m)], std=None) if key(m) == target else m for m in rows]


def decoding(gbs: float, *, timing: str | None = "kernel", gpu: str = RUN.gpu_name, batch: int = 64) -> Lie:
    """Return a decoding step that reads its cache at that many GB/s."""
    of = decode_case(batch=batch, num_heads=64, num_kv_heads=8, context=32768, head_dim=128, dtype="bfloat16")
    ms = levels.bytes_moved(of, "decode") / gbs / 1e6
    row = _row(of, "boast", ms, mode="decode", timing=timing)
    return Lie(f"decoding at {gbs:g} GB/s on {gpu}, {timing}", [row], replace(RUN, gpu_name=gpu))


def model(name: str, metric: str, value: float, mode: str, **case: object) -> Lie:
    """Return one number of a whole model."""
    of = Case(level="model", subject="llama2-7b", dtype="bfloat16", **({"batch": 1, "seqlen_q": 2048} | case))
    return Lie(name, [_row(of, "boast", value, metric=metric, mode=mode)])


def layer(tflops: float) -> Lie:
    """Return a full layer, projections counted, at that rate."""
    of = replace(case_of(2048), level="layer", subject="mha_fused")
    row = _row(of, "boast", levels.flops(of, "fwd") / tflops / 1e9, mode="fwd")
    return Lie(f"a full layer at {tflops:g} TFLOP/s", [row])


def beside(metric: str, value: float, *, mode: str = "fwd", **fields: object) -> Rows:
    """Return the sound rows with one more, printed for triton_fa2 at 4096 tokens."""
    return [*sound(), _row(case_of(4096), "triton_fa2", value, metric=metric, mode=mode, **fields)]


def oom(**case: object) -> Rows:
    """Return the sound rows with an out of memory where larger cases ran."""
    first = case_of(1024, **case)
    failed = [Measurement("r1", first, "triton_fa2", "latency_ms", Status.OOM, mode="fwd", timing="kernel")]
    return failed + [m for m in sound() if m.case != first or m.implementation != "triton_fa2"]


def measured(samples: Sequence[float]) -> Rows:
    """Return the sound rows with samples of one cell that are too good to be true."""
    row = _row(case_of(4096), "boast", sorted(samples)[len(samples) // 2], mode="fwd", timing="kernel")
    other = replace(row, implementation="other", samples=tuple(samples), n=len(samples))
    return [replace(row, samples=tuple(samples), n=len(samples)), other]


def sampled(rows: Iterable[Measurement], seed: int = 0) -> Rows:
    """Return rows where each latency has 30 samples of its own."""
    random_ = random.Random(seed)
    found = []
    for m in rows:
        samples = tuple(m.value * math.exp(0.003 * random_.gauss(0, 1)) for _ in range(30))
        found.append(replace(m, samples=samples, std=None) if m.metric == "latency_ms" else m)
    return found


def resampled(change: Callable[[tuple[float, ...]], Sequence[float]], seqlen: int) -> Rows:
    """Return the sound rows with samples, where those of one length and implementation are changed."""
    return [
        replace(m, samples=tuple(change(m.samples)), n=None)
        if m.samples and (m.case.seqlen_q, m.implementation, m.timing) == (seqlen, "triton_fa2", "kernel")
        else m
        for m in sampled(sound())
    ]


OURS = sampled(sound())


def stolen(name: str, change: Callable[[Measurement], Measurement | None], unseen: str = Lie.unseen) -> Lie:
    """Return a run that is a changed copy of one that is here."""
    rows = [copy for m in OURS if (copy := change(replace(m, run_id="r2")))]
    return Lie(name, rows, replace(RUN, run_id="r2"), ((replace(RUN, source="shipped"), OURS),), unseen)


def scaled(m: Measurement, factor: float) -> Measurement:
    """Return a time with its value and samples multiplied."""
    if m.metric != "latency_ms":
        return m
    return replace(m, value=m.value * factor, samples=tuple(sample * factor for sample in m.samples), std=None)


def on_chip(name: str, implementation: str = "triton_fa2", **facts: object) -> Lie:
    """Return sound rows of an H200, said to be of a run with those facts."""
    known = {"compute_capability": "9.0", "sm_count": 132, "gpu_memory_mb": 143_156.0, "l2_mb": 60.0}
    measured = {"measured_tflops": {"bfloat16": 794.0}, "measured_gbs": 4228.0}
    run = replace(RUN, **({"gpu_name": "NVIDIA H200"} | known | measured | facts))
    return Lie(
        name, [replace(m, implementation=implementation) for m in sound() if m.implementation == "triton_fa2"], run
    )


def training(peak_gib: float) -> Lie:
    """Return a training step of a 7B with that peak."""
    lie = model(f"a 7B trained in {peak_gib:g} GiB, activations left out", "peak_memory_mb", 1024 * peak_gib, "train")
    case = replace(lie.rows[0].case, seqlen_k=2048, batch=4, optimizer="adamw_bf16")
    return replace(lie, rows=[replace(lie.rows[0], case=case, implementation="triton_fa2")])


def tokens(times: float) -> Lie:
    """Return a prefill whose tokens a second are so many times what its latency gives."""
    (row,) = model("", "latency_ms", 100.0, "prefill").rows
    said = replace(row, metric="tokens_per_s", value=times * 2048 / 0.1)
    return Lie(f"tokens a second {times:g} times those of the latency", [row, said])


def of_this_audit() -> list[Lie]:
    """Return the lies that a second auditor got past the checks, and what still no rule can see."""
    cut = [m for m in sound() if m.metric == "latency_ms" and m.timing == "kernel"]
    h100 = {"gpu_memory_mb": 81_079.0, "l2_mb": 50.0}
    random_ = random.Random(1)
    swapped = {"triton_fa2": "torch_sdpa_flash", "torch_sdpa_flash": "triton_fa2"}
    return [
        on_chip("a run with gluon_hopper as B200", "gluon_hopper", gpu_name="NVIDIA B200", gpu_memory_mb=183_359.0),
        on_chip(
            "a run with gluon_hopper as B200, all its facts changed",
            "gluon_hopper",
            gpu_name="NVIDIA B200",
            gpu_memory_mb=183_359.0,
            sm_count=148,
            l2_mb=126.0,
            compute_capability="10.0",
            measured_tflops=None,
            measured_gbs=None,
        ),
        on_chip("a run of an H200 as H100 SXM", gpu_name="NVIDIA H100 80GB HBM3", **h100),
        on_chip("a run of an H200 as H100 PCIe", gpu_name="NVIDIA H100 PCIe", **h100),
        on_chip("a run of an H100 as H200", measured_gbs=3009.0),
        on_chip("a measured peak of 99999 TFLOP/s", measured_tflops={"bfloat16": 99_999.0}),
        stolen("the whole run again under another id", lambda m: m),
        stolen("another's run, each time 0.9 of it", lambda m: scaled(m, 0.9)),
        stolen("another's run without its samples", lambda m: replace(m, samples=(), n=None)),
        stolen("another's run with rivals left out", lambda m: m if m.implementation == "triton_fa2" else None),
        stolen(
            "another's run with labels swapped",
            lambda m: replace(m, implementation=swapped.get(m.implementation, m.implementation)),
        ),
        stolen(
            "another's plain calls as kernels", lambda m: replace(m, timing="kernel") if m.timing == "eager" else None
        ),
        stolen("another's run with its samples sorted", lambda m: replace(m, samples=tuple(sorted(m.samples)))),
        stolen(
            "another's run with 0.3 % of noise",
            lambda m: replace(scaled(m, math.exp(0.003 * random_.gauss(0, 1))), samples=()),
            unseen="two honest runs of one GPU differ by as much.",
        ),
        stolen(
            "the fastest third of another's samples",
            lambda m: replace(
                m,
                samples=tuple(sorted(m.samples)[:10]),
                n=None,
                value=sorted(m.samples or [m.value])[5 if m.samples else 0],
            ),
            unseen="ten samples are a run of another protocol, and the fastest ones spread like a quiet machine's.",
        ),
        Lie(
            "samples that are 0.9 times another's",
            sampled(sound())
            + [
                replace(scaled(m, 0.9), implementation="mine")
                for m in sampled(sound())
                if m.samples and m.implementation == "triton_fa2"
            ],
        ),
        Lie(
            "backward 2.5 times the forward to the digit",
            cut[:0]
            + [
                replace(m, mode=mode, value=m.value * factor, std=None)
                for m in cut
                if m.mode == "fwd"
                for mode, factor in (("fwd", 1.0), ("bwd", 2.5))
            ],
        ),
        Lie("samples repeated four times", resampled(lambda samples: samples[:8] * 4, 4096)),
        Lie("a first sample of 100 times the rest", resampled(lambda samples: (100 * samples[0], *samples[1:]), 4096)),
        tokens(1.3),
        training(65.0),
        Lie("errors 60 times the rounding", only("error_out", 60 / 256 / 2e-3)),
        Lie("an error of 0.4 with status ok", only("error_out", 200.0)),
        Lie("80 W at full load", only("energy_j", 80 / 600)),
        Lie(
            "one implementation in microseconds",
            changed(lambda m: m.value * 1e3 if m.metric == "latency_ms" and m.implementation == "triton_fa2" else None),
        ),
        Lie("plain calls at 0.6 of their kernels", only("fwd eager", 0.6)),
        Lie(
            "42 PFLOP/s in a table that says no mode",
            [_row(case_of(4096), "x", levels.flops(case_of(4096), "fwd") / 42e12)],
        ),
        Lie(
            "TFLOP/s of a table that says no mode",
            [*cut, _row(case_of(4096), "triton_fa2", 2500.0 / 3, metric="tflops")],
        ),
        Lie(
            "TFLOP/s beside a time that says no mode",
            [_row(case_of(4096), "x", 4.0), _row(case_of(4096), "x", 30.0, metric="tflops")],
        ),
        Lie("a standard deviation of 0 without a count", [replace(m, std=0.0, n=None) for m in cut]),
        Lie(
            "memory 5 % above what it was",
            only("peak_memory_mb", 1.05),
            unseen="a workspace of a twentieth is nothing unusual.",
        ),
        Lie(
            "short times 6 times too slow",
            only("fwd", 6.0, seqlen=1024),
            unseen="launches and small grids make short calls slow on honest machines, too.",
        ),
        Lie(
            "the minimum as the value, without samples",
            changed(lambda m: 0.99 * m.value if m.metric == "latency_ms" else None),
            unseen="a statistic that is not said cannot be told from a faster machine.",
        ),
    ]


def lies() -> list[Lie]:
    """Return every planted lie."""
    return [*_of_rules(), *of_this_audit()]


def _of_rules() -> list[Lie]:
    noisy = [1.4 + at / 311 for at in range(30)]
    cut = [m for m in sound() if m.metric == "latency_ms" and m.timing == "kernel"]
    no_head_dim = Run("r1", "upload", gpu_name="RTX 4090")
    return [
        Lie("forward three times too fast", only("fwd", 1 / 3)),
        Lie("forward ten times too fast", only("fwd", 0.1)),
        Lie("backward five times too fast", only("bwd", 0.2)),
        Lie("milliseconds read as seconds", changed(lambda m: m.value / 1e3 if m.metric == "latency_ms" else None)),
        Lie(
            "microseconds read as milliseconds", changed(lambda m: m.value * 1e3 if m.metric == "latency_ms" else None)
        ),
        Lie("nanoseconds read as milliseconds", changed(lambda m: m.value * 1e6 if m.metric == "latency_ms" else None)),
        Lie("a call of 0.5 us", only("fwd", 1e-4, seqlen=1024)),
        Lie("a kernel of 0.9 us at 128 tokens", [_row(case_of(128, batch=1, num_heads=1), "x", 9e-4, mode="fwd")]),
        Lie(
            "a plain call of 1.5 us", [_row(case_of(64, batch=1, num_heads=1), "x", 1.5e-3, mode="fwd", timing="eager")]
        ),
        Lie("plain calls in a third of their kernels' time", only("fwd eager", 1 / 3)),
        Lie("plain backward in a quarter of its kernels' time", only("bwd eager", 1 / 4)),
        Lie("both together faster than the backward", only("fwd_bwd", 0.6)),
        Lie("both together twice the sum", only("fwd_bwd", 2.0)),
        Lie("both together is the forward", copied(lambda m: m.mode, "fwd", "fwd_bwd")),
        Lie("backward ten times the forward", only("bwd", 4.0)),
        Lie("backward faster than the forward", only("bwd kernel", 0.35)),
        Lie("times fall from 4096 tokens to 8192", only("fwd", 0.1, name="torch_naive", seqlen=8192)),
        Lie(
            "times of plain tables fall with the length",
            [replace(m, timing=None) for m in only("fwd kernel", 0.1, name="torch_naive", seqlen=4096)],
        ),
        Lie("the same time at every length", changed(lambda m: 1.234 if m.timing == "kernel" else None, cut)),
        Lie("30 samples without spread", [replace(m, std=0.0) if m.timing == "kernel" else m for m in sound()]),
        Lie("30 equal samples", measured([1.5] * 30)[:1]),
        Lie("p20 is p80", [replace(m, std=None, p20=m.value, p80=m.value) for m in cut]),
        Lie("two implementations with the same samples", measured(noisy)),
        Lie(
            "one implementation copied to another", copied(lambda m: m.implementation, "triton_fa2", "torch_sdpa_flash")
        ),
        Lie(
            "the baseline copied to an implementation", copied(lambda m: m.implementation, "torch_naive", "triton_fa2")
        ),
        Lie("backward copied from the forward", copied(lambda m: m.mode, "fwd", "bwd")),
        Lie(
            "head_dim 64 copied from 128",
            cut + [replace(m, case=replace(m.case, head_dim=64, head_dim_v=64)) for m in cut],
        ),
        Lie("causal copied from full", cut + [replace(m, case=replace(m.case, causal=True)) for m in cut]),
        Lie("float16 copied from bfloat16", cut + [replace(m, case=replace(m.case, dtype="float16")) for m in cut]),
        Lie("batch 4 copied from batch 8", cut + [replace(m, case=replace(m.case, batch=4)) for m in cut]),
        Lie("plain calls copied from kernels", [m for c in cut for m in (c, replace(c, timing="eager"))]),
        Lie("memory in bytes", changed(lambda m: m.value * 2**20 if m.metric == "peak_memory_mb" else None)),
        Lie("memory in KiB", changed(lambda m: m.value * 2**10 if m.metric == "peak_memory_mb" else None)),
        Lie("memory in GiB", changed(lambda m: m.value / 2**10 if m.metric == "peak_memory_mb" else None)),
        Lie("memory without its inputs", only("peak_memory_mb", 0.5)),
        Lie(
            "memory of an unknown implementation below its inputs",
            [
                replace(m, implementation="magic")
                for m in only("peak_memory_mb", 0.3)
                if m.implementation == "triton_fa2"
            ],
        ),
        Lie("torch_naive without its score matrix", only("peak_memory_mb", 0.05, name="torch_naive")),
        Lie("memory falls from 4096 tokens to 8192", only("peak_memory_mb", 0.2, name="torch_naive", seqlen=8192)),
        Lie("a peak above the device", only("peak_memory_mb", 400.0)),
        Lie("out of memory where longer sequences ran", oom()),
        Lie("out of memory at one token", oom(batch=8)),
        Lie("error of 1e-6 in bfloat16", only("error_out", 5e-4)),
        Lie("error of 0 in bfloat16", only("error_out", 0.0)),
        Lie("float16 errors in bfloat16", only("error_out", 0.1)),
        Lie(
            "float64 error in float32",
            [
                replace(m, case=replace(m.case, dtype="float32"))
                for m in only("error_out", 1e-10)
                if m.metric == "error_out"
            ],
        ),
        Lie("1500 W", [_row(case_of(4096), "x", 1500.0, metric="sustained_power_w", mode="fwd")]),
        Lie(
            "400 W on an L4",
            [_row(case_of(4096), "x", 400.0, metric="sustained_power_w", mode="fwd")],
            Run("r1", "upload", gpu_name="L4"),
        ),
        Lie("energy in kJ", only("energy_j", 1e3)),
        Lie("energy five times the power limit", only("energy_j", 6.0)),
        Lie("3.9 GHz", [_row(case_of(4096), "x", 3900.0, metric="sustained_clock_mhz", mode="fwd")]),
        Lie(
            "an A100 at 2.1 GHz",
            [_row(case_of(4096), "x", 2.0, mode="fwd", sm_clock_mhz=2100.0)],
            Run("r1", "upload", gpu_name="A100"),
        ),
        Lie("2000 TFLOP/s printed", beside("tflops", 2000.0)),
        Lie("TFLOP/s printed twice those of the time", beside("tflops", 870.0)),
        Lie("TFLOP/s printed a quarter of those of the time", beside("tflops", 100.0)),
        Lie(
            "causal TFLOP/s counted as full",
            [
                *with_case(causal=True),
                _row(case_of(4096, causal=True), "triton_fa2", 840.0, metric="tflops", mode="fwd"),
            ],
        ),
        Lie("6000 GB/s printed", beside("gb_per_s", 6000.0)),
        Lie("sustained above the peak", beside("sustained_tflops", 1200.0)),
        Lie(
            "a speedup of 20 over torch_naive printed", beside("speedup", 20.0, baseline="torch_naive", timing="kernel")
        ),
        Lie("a speedup upside down", beside("speedup", 0.14, baseline="torch_naive", timing="kernel")),
        Lie("a speedup of a table without timing", beside("speedup", 12.0, baseline="torch_naive")),
        on("H100 SXM", 1300),
        on("H100 PCIe", 900),
        on("A100", 400),
        on("RTX 4060", 60),
        on("RTX 4090", 300),
        on("A10G", 100),
        on("L40S", 500),
        on("L4", 200),
        on("B200", 3000),
        on("NVIDIA GeForce RTX 4060 Laptop GPU", 40),
        on("H800", 30, dtype="float64"),
        on("B300", 10, dtype="float64"),
        Lie(
            "a peak of 26 GB on an L4 whose memory is not said",
            [_row(case_of(4096), "x", 26_000.0, metric="peak_memory_mb", mode="fwd")],
            Run("r1", "upload", gpu_name="L4"),
        ),
        on("NVIDIA GeForce RTX 3090", 120),
        on("MI300X", 1700),
        on("a GPU nobody knows", 3000),
        on(None, 3500),
        on("NVIDIA H200", 700, dtype="float32"),
        on("NVIDIA H200", 100, dtype="float64"),
        on("NVIDIA A100-SXM4-80GB", 500, dtype="float16"),
        decoding(4200),
        decoding(9000, gpu="some GPU", batch=128),
        decoding(3000, gpu="A100 40GB", timing=None),
        Lie("half of the cache is read", [replace(decoding(6500).rows[0], timing=None)]),
        layer(1300),
        model("training a 7B at 60 000 tokens a second", "tokens_per_s", 60_000.0, "train"),
        model("training at 30 samples of 2048 tokens a second", "samples_per_s", 30.0, "train"),
        model("decoding a 7B at 2 000 tokens a second alone", "tokens_per_s", 2000.0, "decode"),
        model("prefill of a 7B at 200 000 tokens a second", "tokens_per_s", 200_000.0, "prefill"),
        model("a 7B in 8 GiB", "peak_memory_mb", 8192.0, "prefill"),
        Lie("a 7B trained in 20 GiB", model("", "peak_memory_mb", 20_480.0, "train").rows),
        Lie(
            "every forward of an implementation 30 % faster than it is",
            only("fwd", 0.77),
            unseen="546 TFLOP/s is a rate that kernels have on that GPU, steady over seqlen and also in plain calls. "
            "Backward over forward becomes 4.1; honest runs have 1 to 6. Energy over time is 779 W; honest runs have "
            "up to 1.7 times the limit, as energy is measured hot and time cold. Only a second run can tell.",
        ),
        Lie("one time 20 % better than it was", only("fwd kernel", 0.83, seqlen=2048)),
        Lie("another GPU named", cut, replace(no_head_dim, gpu_name="NVIDIA A100-SXM4-80GB")),
    ]


def caught(lie: Lie) -> list[str]:
    """Return the names of the rules that find something in it."""
    return sorted({finding.rule for finding in check([(lie.run, lie.rows)], lie.known)})


def table() -> Iterable[str]:
    """Yield the lines of the table, and the sum."""
    planted = lies()
    found = {lie.name: caught(lie) for lie in planted}
    unseen = {lie.name: lie.unseen for lie in planted}
    yield "| planted lie | caught by |"
    yield "| --- | --- |"
    for name, rules in found.items():
        yield f"| {name} | {', '.join(rules) or f'**missed**: {unseen[name]}'} |"
    yield ""
    yield f"{sum(map(bool, found.values()))} of {len(found)} planted lies are caught."


if __name__ == "__main__":
    print("\n".join(table()))
