"""Made-up runs in the shapes of the published reports, and what is shown of them beside the reports."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

from results import reports
from results.levels.model_table import model
from results.records import Case, Measurement, Run, Status
from results.reports import side_by_side
from results.reports.rendering import Runs
from runner.sweeps import SWEEPS
from tests.builders import latency, shipped

RECORDED = Path(__file__).with_name("recorded")
H200 = "NVIDIA H200"
DECLARED = {"causal": True, "window": True, "gqa": True, "paged": False, "precision": None, "family": "own"}
OF_OPS = Run(
    "ops",
    "local",
    gpu_name=H200,
    implementations={
        "torch_naive": {**DECLARED, "memory": {"growth": "matrix", "fwd": {"matrices": 2}}},
        "flash_attn_1": {**DECLARED, "gqa": False, "window": False, "memory": {"growth": "linear"}},
        "triton_fa2": {**DECLARED, "memory": {"growth": "linear", "fwd": {"numbers": 1}}},
        "gluon_hopper": DECLARED,
        "gluon_fp8": {**DECLARED, "precision": "fp8"},
    },
)
OF_MODELS = Run("models", "local", gpu_name=H200, implementations={"triton_split_kv": {**DECLARED, "paged": True}})
# microseconds a token and head-batch, and MiB a token
OP_SPEEDS = {"torch_naive": 8.0, "flash_attn_1": 4.0, "triton_fa2": 2.0, "gluon_hopper": 1.0, "gluon_fp8": 0.5}


def ops() -> list[Measurement]:
    found = []
    for case in SWEEPS["performance_guide"].cases():
        for name, speed in OP_SPEEDS.items():
            if name == "torch_naive" and case.seqlen_q == 32768:
                found.append(latency(name, Status.SKIPPED, case, run_id=OF_OPS.run_id, note="needs 512 GiB of 139.8"))
                continue
            work = case.batch * case.seqlen_q * case.seqlen_q / 1024 / 1000
            found.append(number(OF_OPS, case, name, "fwd", "latency_ms", speed * work, "kernel"))
            memory = case.batch * case.seqlen_q / (4 if name != "torch_naive" else 1)
            found.append(number(OF_OPS, case, name, "fwd", "peak_memory_mb", memory))
    return found


def number(run: Run, case: Case, name: str, mode: str, metric: str, value: float, timing: str | None = None):
    return Measurement(run.run_id, case, name, metric, Status.OK, mode, timing, value=value, statistic="median", n=9)


def of_model(subject: str, batch: int, seqlen: int, **fields) -> Case:
    config = model(subject)
    sizes = {"num_heads": config.heads, "num_kv_heads": config.kv_heads, "head_dim": config.head_dim}
    given = {"seqlen_q": seqlen, "optimizer": "none", "checkpointing": False, "compiled": True} | fields
    return Case(
        level="model",
        subject=subject,
        batch=batch,
        seqlen_k=seqlen,
        head_dim_v=config.value_dim,
        dtype="bfloat16",
        causal=True,
        window_size=0,
        page_size=0,
        latent_dim=0,
        num_layers=config.layers,
        **sizes,
        **given,
    )


def models() -> list[Measurement]:
    """Generation twice, prefill three times and training two and a half times as fast with ours."""
    found = []
    for context in (512, 2048, 4096, 8192, 16384, 32768):
        case = of_model("llama2-7b", 1, context)
        for name, ms, mb in (("torch_naive", 3.0, 2.0), ("triton_fa2", 1.0, 1.0)):
            found.append(number(OF_MODELS, case, name, "prefill", "latency_ms", ms * context / 100, "kernel"))
            found.append(number(OF_MODELS, case, name, "prefill", "peak_memory_mb", 14000 + mb * context))
        step = of_model("llama2-7b", 1, context, seqlen_q=1)
        for name, ms in (("torch_naive", 10.0), ("triton_split_kv", 5.0)):
            found.append(number(OF_MODELS, step, name, "decode", "latency_ms", ms, "kernel"))
    for subject in ("gpt2", "gpt-j-6b", "gpt-neox-20b"):
        step = of_model(subject, 1, 1024, seqlen_q=1)
        for name, ms in (("torch_naive", 10.0), ("triton_split_kv", 5.0)):
            found.append(number(OF_MODELS, step, name, "decode", "latency_ms", ms, "kernel"))
    for batch, seqlen in ((4, 2048), (8, 2048), (4, 4096), (8, 4096), (2, 8192), (4, 8192)):
        case = of_model("llama2-7b", batch, seqlen, optimizer="adamw_bf16")
        found += training(case)
    found += training(of_model("llama2-13b", 4, 2048, optimizer="adamw_bf16"))
    whole = of_model("llama2-70b", 4, 2048, optimizer="adamw_bf16")
    for name, ms in (("torch_naive", 20000.0), ("triton_fa2", 8000.0)):
        skipped = {"status": Status.SKIPPED, "note": "needs 1064.5 GiB of 139.8"}
        found.append(Measurement(OF_MODELS.run_id, whole, name, "latency_ms", mode="train", timing="eager", **skipped))
        found.append(number(OF_MODELS, whole, name, "train", "latency_extrapolated_ms", ms, "eager"))
    return found


def training(case: Case) -> list[Measurement]:
    tokens = case.batch * case.seqlen_q
    return [
        made
        for name, ms, mb in (("torch_naive", 2.5, 3.0), ("triton_fa2", 1.0, 1.0))
        for made in (
            number(OF_MODELS, case, name, "train", "latency_ms", ms * tokens / 10, "eager"),
            number(OF_MODELS, case, name, "train", "peak_memory_mb", 40000 + mb * tokens),
        )
    ]


DTYPES = ("bfloat16", "float16")


def own_of(name: str, factor: float, dtypes: tuple[str, ...] = DTYPES[:1]) -> list[Measurement]:
    """Return a run with a report's own latencies, but those of the baseline that many times as long."""
    report = reports.get(name)
    ((_, printed),) = side_by_side.published(name)
    baseline = next(iter(report.implementations.values()))
    found = []
    for m in printed:
        if m.metric != "latency_ms" or m.value is None:
            continue
        ours = report.implementations[m.implementation]
        value = m.value * factor if ours == baseline else m.value
        for dtype in dtypes:
            case = replace(m.case, dtype=dtype)
            found.append(
                replace(m, run_id="own", case=case, implementation=ours, value=value, printed=None, origin=None)
            )
    return found


def own_run(speedup: float, *, sweep: str = "fa2_speedup", num_heads: int = 1) -> tuple[Run, list[Measurement]]:
    """A run in which torch_naive takes a microsecond a token and triton_fa2 is that much faster."""
    factors = {"torch_naive": 1.0, "triton_fa2": speedup, "torch_sdpa_flash": 50.0}
    made, slower = [], {"kernel": 1.0, "eager": 7.0}
    for case, name, mode, timing in product(SWEEPS[sweep].cases(), factors, ("fwd", "bwd", "fwd_bwd"), slower):
        ms = case.seqlen_q / 1000 / factors[name] * slower[timing]
        case = replace(case, num_heads=num_heads, num_kv_heads=num_heads)
        spread = {"mean": 2 * ms, "std": 0.5, "n": None}
        made.append(latency(name, ms, case, run_id="own", mode=mode, timing=timing, **spread))
    return Run(run_id="own", source="local", gpu_name="NVIDIA H200"), made


BESIDE: dict[str, tuple[str, Callable[[], Runs]]] = {  # by file: a report, and the runs beside it
    "performance_guide": ("performance_guide", lambda: [(OF_OPS, ops()), (OF_MODELS, models())]),
    "attention_layers_a100": (
        "attention_layers_a100",
        lambda: [(Run("own", "local", gpu_name="NVIDIA H200"), own_of("attention_layers_a100", 2.0, DTYPES))],
    ),
    "flashtile_a100": ("flashtile_a100", lambda: [(Run("own", "local"), own_of("flashtile_a100", 1.0, ("float32",)))]),
    "torch_vs_triton": ("torch_vs_triton", lambda: [own_run(4.0, sweep="torch_vs_triton")]),
    "fa2_rtx4060": ("fa2_rtx4060", lambda: [own_run(4.0)]),
    "fa2_rtx4060-shipped": ("fa2_rtx4060", lambda: [shipped("h200-fa2_speedup")]),
    "torch_vs_triton-shipped": ("torch_vs_triton", lambda: [shipped("h200-fa2_speedup")]),
}


def shown(title: str) -> str:
    """Return the tables of a report beside runs, then the runs alone in its layout."""
    name, runs = BESIDE[title][0], BESIDE[title][1]()
    printed = side_by_side.published(name)
    whole = side_by_side.render(name, printed, runs).partition("\n## Findings")[0]
    return f"{whole}\n{side_by_side.render_own(name, printed, runs)}"


if __name__ == "__main__":  # record what is shown; the difference is read like code
    RECORDED.mkdir(exist_ok=True)
    for each in BESIDE:
        RECORDED.joinpath(f"{each}.md").write_text(shown(each), encoding="utf-8")
