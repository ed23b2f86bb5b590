from results.records import Measurement, Status, attention_case
from results.reports.beside import speedups_beside


def _number(implementation: str, metric: str, value: float | None, **fields: object) -> Measurement:
    case = attention_case(batch=1, num_heads=1, seqlen=512, head_dim=64, dtype="bfloat16", causal=True)
    status = fields.pop("status", Status.OK)
    return Measurement("r", case, implementation, metric, status, mode="fwd", value=value, **fields)


def _row(printed: list[Measurement], own: list[Measurement]) -> str:
    return speedups_beside(printed, own, baseline="torch_naive", implementation="triton_fa2").splitlines()[2]


def test_the_own_speedup_is_of_device_times_only() -> None:
    own = [
        _number("torch_naive", "latency_ms", 3.0, timing="kernel"),
        _number("triton_fa2", "latency_ms", 1.0, timing="kernel"),
        _number("torch_naive", "latency_ms", 99.0, timing="eager"),
        _number("triton_fa2", "latency_ms", 1.0, timing="eager"),
    ]
    printed = [_number("triton_fa2", "speedup", 1.25, baseline="torch")]
    assert _row(printed, own) == "| bfloat16, 64 | 1.2× / 3.0× |"


def test_a_failure_stands_where_the_number_would() -> None:
    out = Status.OUT_OF_RESOURCES
    printed = [
        _number("triton_fa2", "latency_ms", None, status=out),
        _number("triton_fa2", "speedup", None, baseline="torch", status=Status.SKIPPED),
    ]
    own = [_number("triton_fa2", "latency_ms", None, status=Status.OOM, timing="kernel")]
    assert _row(printed, own) == "| bfloat16, 64 | shared memory / OOM |"
    assert _row(printed, []) == "| bfloat16, 64 | shared memory / not measured |"
