import duckdb
import pytest

from results import derive
from results.records import attention_case

CASE = {"batch": 2, "num_heads": 3, "num_kv_heads": 3, "seqlen_q": 5, "seqlen_k": 7, "head_dim": 16, "head_dim_v": 16}


def _counted_pairs(seqlen_q: int, seqlen_k: int, causal: bool, window_size: int) -> int:
    def seen(i: int, j: int) -> bool:
        position = i + seqlen_k - seqlen_q
        return (not causal or j <= position) and (not window_size or abs(position - j) < window_size)

    return sum(seen(i, j) for i in range(seqlen_q) for j in range(seqlen_k))


@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 1), (63, 63), (5, 9), (9, 5), (1, 40)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window_size", [0, 1, 4, 100])
def test_unmasked_pairs_are_those_that_counting_finds(seqlen_q, seqlen_k, causal, window_size):
    expected = _counted_pairs(seqlen_q, seqlen_k, causal, window_size)
    assert derive.unmasked_pairs(seqlen_q, seqlen_k, causal=causal, window_size=window_size) == expected


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("causal,window_size", [(False, 0), (True, 0), (True, 3), (False, 2)])
def test_flops_in_sql_are_flops_in_python(mode, causal, window_size):
    case = CASE | {"causal": causal, "window_size": window_size}
    columns = ", ".join(f"{'NULL' if v is None else v!r} AS {k}" for k, v in (case | {"mode": mode}).items())
    answer = duckdb.connect().execute(f"SELECT {derive.FLOPS_SQL} FROM (SELECT {columns})").fetchone()[0]
    assert answer == pytest.approx(derive.attention_flops(case, mode))


def test_flops_follow_the_paper_for_a_full_mask():
    case = attention_case(batch=2, num_heads=16, seqlen=512, head_dim=64, dtype="bfloat16", causal=False)
    forward = 4 * 2 * 16 * 512 * 512 * 64
    assert derive.attention_flops(vars(case), "fwd") == forward
    assert derive.attention_flops(vars(case), "bwd") == 2.5 * forward
    assert derive.attention_flops(vars(case), "fwd_bwd") == 3.5 * forward


@pytest.mark.parametrize("missing", ["batch", "num_heads", "seqlen_k", "causal", "window_size"])
def test_flops_are_missing_when_the_source_left_something_open(missing):
    case = CASE | {"causal": True, "window_size": 0}
    assert derive.attention_flops(case, "fwd") is not None
    assert derive.attention_flops(case | {missing: None}, "fwd") is None
    assert derive.attention_flops(case | {missing: float("nan")}, "fwd") is None


def test_speedup_is_missing_when_the_baseline_has_no_number():
    assert derive.speedup(2.0, 0.5) == 4.0
    assert derive.speedup(None, 0.5) is None
    assert derive.speedup(2.0, None) is None


def test_geometric_mean_puts_twice_and_half_at_one():
    assert derive.geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert derive.geometric_mean([]) is None


def test_peak_is_known_only_for_the_name_the_driver_reports():
    assert derive.peak_tflops("NVIDIA H200", "bfloat16") == 989.5
    assert derive.peak_tflops("H200", "bfloat16") is None
    assert derive.peak_tflops("NVIDIA H200", "float32") is None
    assert derive.peak_tflops("NVIDIA H200", "float32", tf32=True) == 494.5
    assert derive.peak_tflops("NVIDIA H200", "float32", tf32=False) == 67.0
    assert derive.peak_tflops("NVIDIA H200", "float8_e4m3fn") == 1979.0
    assert derive.peak_tflops("NVIDIA A100-SXM4-80GB", "float8_e4m3fn") is None
    assert derive.percent_of_peak(494.75, 989.5) == 50.0


def test_bytes_count_each_tensor_once():
    case = attention_case(batch=1, num_heads=4, num_kv_heads=2, seqlen=8, head_dim=16, dtype="float16", causal=True)
    q, kv, lse = 4 * 8 * 16 * 2, 2 * 8 * 16 * 2, 4 * 8 * 4
    assert derive.bytes_moved(vars(case), "fwd") == q + 2 * kv + q + lse
    assert derive.bytes_moved(vars(case), "bwd") == (q + 2 * kv + 2 * q + lse) + (q + 2 * kv)


def test_predicted_memory_of_a_matrix_grows_with_the_square_of_seqlen():
    def mb(seqlen: int, name: str) -> float:
        case = attention_case(batch=1, num_heads=1, seqlen=seqlen, head_dim=16, dtype="float16", causal=True)
        return derive.predicted_memory_mb(vars(case), derive.memory_kind(name), "fwd")

    assert mb(16384, "torch_naive") == 2 * 16384**2 * 2 / derive.MIB + 4 * 16384 * 16 * 2 / derive.MIB
    assert mb(16384, "torch_sdpa_flash") == 2 * mb(8192, "torch_sdpa_flash")


def test_no_memory_is_predicted_for_an_algorithm_nobody_named():
    case = attention_case(batch=1, num_heads=1, seqlen=64, head_dim=16, dtype="float16", causal=True)
    assert derive.memory_kind("torch") is None
    assert derive.predicted_memory_mb(vars(case), None, "fwd") is None


def test_the_measured_peak_is_that_of_the_dtype_and_of_tf32_where_it_was_used():
    measured = {"bfloat16": 800.0, "float32": 50.0, "tf32": 400.0}
    assert derive.measured_peak_tflops(measured, "bfloat16") == 800.0
    assert derive.measured_peak_tflops(measured, "float32", tf32=True) == 400.0
    assert derive.measured_peak_tflops(measured, "float32", tf32=False) == 50.0
    assert derive.measured_peak_tflops(measured, "float32") is None
    assert derive.measured_peak_tflops(measured, "float16") is None
    assert derive.measured_peak_tflops(None, "bfloat16") is None


def test_tokens_are_those_of_the_queries_and_energy_is_shared_among_them():
    case = vars(attention_case(batch=4, num_heads=2, seqlen=500, head_dim=64, dtype="bfloat16", causal=False))
    assert derive.tokens(case) == 2000
    assert derive.time_per_token_us(case, 3.0) == pytest.approx(1.5)
    assert derive.tokens_per_joule(case, 0.5) == 4000
    assert derive.joules_per_tflop(case, "fwd", 0.5) == pytest.approx(0.5 / (4 * 4 * 2 * 500 * 500 * 64) * 1e12)
    for function in (derive.time_per_token_us, derive.tokens_per_joule):
        assert function(case, None) is None
        assert function({**case, "batch": None}, 1.0) is None
    assert derive.joules_per_tflop(case, "prefill", 0.5) is None
