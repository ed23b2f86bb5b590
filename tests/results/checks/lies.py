"""Planted lies, and whether a check catches each: python -m tests.results.checks.lies

Every lie is a sound run of an H100 with one thing changed, as a slip, a wrong unit or a boast would change it. The run
without a lie has no finding. What the tables cannot know to be a lie is planted too, and printed as missed with the
reason.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results import levels
from results.checks import check
from results.levels.tensors import tensor_bytes
from results.records import Case, Measurement, Run, Status, attention_case, case_to_json, decode_case

SEQLENS = (1024, 2048, 4096, 8192)
NAMES = {"torch_naive": 60.0, "torch_sdpa_flash": 350.0, "triton_fa2": 420.0}  # TFLOP/s of a forward
SHARE = {"fwd": 1.0, "bwd": 0.8, "fwd_bwd": 0.85}
RUN = Run("r1", "upload", gpu_name="NVIDIA H100 80GB HBM3", gpu_memory_mb=81_559.0, power_limit_w=700.0)
DECLARED = Path(__file__).with_name("lies.json")  # the lies that one maker of rows makes
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


def only(where: str, factor: float, *, name: str | None = "triton_fa2", seqlen: int | None = None) -> Rows:
    """Return the sound rows with one or every implementation's numbers of a mode, timing or metric multiplied."""

    def change(m: Measurement) -> float | None:
        said = (m.mode, m.timing, m.metric, f"{m.mode} {m.timing}")
        hit = name in (None, m.implementation) and where in said and seqlen in (None, m.case.seqlen_q)
        return m.value * factor if hit and (where not in ("fwd", "bwd") or m.metric == "latency_ms") else None

    return changed(change)


def cut() -> Rows:
    """Return the kernel times of the sound run."""
    return [m for m in sound() if m.metric == "latency_ms" and m.timing == "kernel"]


def with_case(**changes: object) -> Rows:
    """Return the sound rows with fields of their cases changed."""
    return [replace(m, case=replace(m.case, **changes)) for m in sound()]


def on(gpu: str | None, tflops: float, **case: object) -> Lie:
    """Return one forward at that rate on a GPU named so."""
    of = case_of(4096, **case)
    row = _row(of, "boast", levels.flops(of, "fwd") / tflops / 1e9, mode="fwd")
    return Lie(f"{tflops:g} TFLOP/s in {of.dtype} on {gpu}", [row], Run("r1", "upload", gpu_name=gpu))


def copied(field: str, source: object, target: object) -> Rows:
    """Return the sound rows where those with `target` in a field have the values of those with `source`."""
    rows = [m for m in sound() if m.metric == "latency_ms"]
    others = [name for name in ("implementation", "mode") if name != field]
    place = lambda m: (m.case.seqlen_q, m.timing, *(getattr(m, name) for name in others))  # noqa: E731
    values = {place(m): m.value for m in rows if getattr(m, field) == source}
    return [replace(m, value=values[place(m)], std=None) if getattr(m, field) == target else m for m in rows]


def also(**case: object) -> Rows:
    """Return the sound kernel times, and the same times for cases with changed fields."""
    rows = cut()
    return rows + [replace(m, case=replace(m.case, **case)) for m in rows]


def one(seqlen: int, value: float, case: dict[str, object] | None = None, **fields: object) -> Rows:
    """Return one number of a forward, and nothing else."""
    return [_row(case_of(seqlen, **(case or {})), "x", value, **({"mode": "fwd"} | fields))]


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


def stolen(name: str) -> Lie:
    """Return a run that is a changed copy of one that is here."""
    rows = [copy for m in OURS if (copy := STOLEN[name](replace(m, run_id="r2")))]
    here = (replace(RUN, source="shipped"), OURS)
    return Lie(name, rows, replace(RUN, run_id="r2"), (here,), UNSEEN.get(name, Lie.unseen))


def scaled(m: Measurement, factor: float) -> Measurement:
    """Return a time with its value and samples multiplied, and nothing else about its spread."""
    if m.metric != "latency_ms":
        return m
    bare = dict.fromkeys(("mean", "std", "p20", "p80", "ci_low", "ci_high"))
    return replace(m, **bare, value=m.value * factor, samples=tuple(sample * factor for sample in m.samples))


CHANCE = random.Random(1)
SWAPPED = {"triton_fa2": "torch_sdpa_flash", "torch_sdpa_flash": "triton_fa2"}


def _swapped(m: Measurement) -> Measurement:
    return replace(m, implementation=SWAPPED.get(m.implementation, m.implementation))


def _noisy(m: Measurement) -> Measurement:
    return replace(scaled(m, math.exp(0.003 * CHANCE.gauss(0, 1))), samples=())


def _fastest(m: Measurement) -> Measurement:
    value = sorted(m.samples)[5] if m.samples else m.value
    return replace(m, samples=tuple(sorted(m.samples)[:10]), n=None, value=value)


STOLEN: dict[str, Callable[[Measurement], Measurement | None]] = {
    "the whole run again under another id": lambda m: m,
    "another's run, each time 0.9 of it": lambda m: scaled(m, 0.9),
    "another's run without its samples": lambda m: replace(m, samples=(), n=None),
    "another's run with rivals left out": lambda m: m if m.implementation == "triton_fa2" else None,
    "another's run with labels swapped": _swapped,
    "another's plain calls as kernels": lambda m: replace(m, timing="kernel") if m.timing == "eager" else None,
    "another's run with its samples sorted": lambda m: replace(m, samples=tuple(sorted(m.samples))),
    "another's run with 0.3 % of noise": _noisy,
    "the fastest third of another's samples": _fastest,
}


def on_chip(name: str, implementation: str = "triton_fa2", **facts: object) -> Lie:
    """Return sound rows of an H200, said to be of a run with those facts."""
    known = {"compute_capability": "9.0", "sm_count": 132, "gpu_memory_mb": 143_156.0, "l2_mb": 60.0}
    measured = {"measured_tflops": {"bfloat16": 794.0}, "measured_gbs": 4228.0}
    run = replace(RUN, **({"gpu_name": "NVIDIA H200"} | known | measured | facts))
    rows = [replace(m, implementation=implementation) for m in sound() if m.implementation == "triton_fa2"]
    return Lie(name, rows, run)


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


MAKERS = {
    maker.__name__: maker
    for maker in (only, copied, beside, oom, one, also, on, on_chip, decoding, model, layer, training, tokens)
}


UNSEEN = {  # why no rule can know it to be a lie
    "another's run with 0.3 % of noise": "two honest runs of one GPU differ by as much.",
    "the fastest third of another's samples": "ten samples are a run of another protocol, and the fastest ones spread "
    "like a quiet machine's.",
}


def lies() -> list[Lie]:
    """Return every planted lie: those of lies.json, those that are made here, and copies of another run.

    In lies.json each names a maker of this module, its arguments, and the run if it is another.
    """
    found = []
    for entry in json.loads(DECLARED.read_text()):
        made = MAKERS[entry["make"]](*entry.get("with", ()), **entry.get("fields", {}))
        if not isinstance(made, Lie):
            run = Run("r1", "upload", **entry["run"]) if "run" in entry else RUN
            made = Lie(entry["name"], made, run, unseen=entry.get("unseen", Lie.unseen))
        found.append(made)
    found.append(Lie("another GPU named", cut(), Run("r1", "upload", gpu_name="NVIDIA A100-SXM4-80GB")))
    return [*found, *(Lie(name, rows) for name, rows in _made_here().items()), *map(stolen, STOLEN)]


def _made_here() -> dict[str, Rows]:
    magic = [m for m in only("peak_memory_mb", 0.3) if m.implementation == "triton_fa2"]
    exact = [m for m in only("error_out", 1e-10) if m.metric == "error_out"]
    causal = _row(case_of(4096, causal=True), "triton_fa2", 840.0, metric="tflops", mode="fwd")
    modeless = _row(case_of(4096), "triton_fa2", 2500.0 / 3, metric="tflops")
    both = [_row(case_of(4096), "x", 4.0), _row(case_of(4096), "x", 30.0, metric="tflops")]
    ours = [m for m in OURS if m.samples and m.implementation == "triton_fa2"]
    mine = [replace(scaled(m, 0.9), implementation="mine") for m in ours]
    forward = [m for m in cut() if m.mode == "fwd"]
    longer = [m for m in OURS if m.samples and m.case.seqlen_q == 4096]
    falling = only("fwd kernel", 0.1, name="torch_naive", seqlen=4096)
    return {
        "times of plain tables fall with the length": [replace(m, timing=None) for m in falling],
        "the same time at every length": changed(lambda m: 1.234 if m.timing == "kernel" else None, cut()),
        "30 samples without spread": [replace(m, std=0.0) if m.timing == "kernel" else m for m in sound()],
        "30 equal samples": measured([1.5] * 30)[:1],
        "p20 is p80": [replace(m, std=None, p20=m.value, p80=m.value) for m in cut()],
        "two implementations with the same samples": measured([1.4 + at / 311 for at in range(30)]),
        "plain calls copied from kernels": [m for c in cut() for m in (c, replace(c, timing="eager"))],
        "memory of an unknown implementation below its inputs": [replace(m, implementation="magic") for m in magic],
        "float64 error in float32": [replace(m, case=replace(m.case, dtype="float32")) for m in exact],
        "causal TFLOP/s counted as full": [*with_case(causal=True), causal],
        "samples that are 0.9 times another's": [*OURS, *mine],
        "backward 2.5 times the forward to the digit": [
            *(replace(m, std=None) for m in forward),
            *(replace(m, mode="bwd", value=m.value * 2.5, std=None) for m in forward),
        ],
        "the times of 4096 tokens for 3072, too": [*OURS, *(replace(m, case=case_of(3072)) for m in longer)],
        "samples rounded to 0.1 ms": resampled(lambda samples: [round(sample, 1) for sample in samples], 4096),
        "samples repeated four times": resampled(lambda samples: samples[:8] * 4, 4096),
        "a first sample of 100 times the rest": resampled(lambda samples: (100 * samples[0], *samples[1:]), 4096),
        "TFLOP/s of a table that says no mode": [*cut(), modeless],
        "TFLOP/s beside a time that says no mode": both,
        "a standard deviation of 0 without a count": [replace(m, std=0.0, n=None) for m in cut()],
    }


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
