"""Predicted memory: held against what an H200 measured, and turned into the longest sequence that fits."""

import json
from collections.abc import Sequence

import pytest

from kernels import registry
from results import levels
from results.files import columns
from results.implementations import Declared, facts_of, known_names
from results.levels import level_of
from results.levels.memory import MemoryLaw, MemoryParts, law_from_json
from results.levels.tensors import kv_cache_mb
from results.paths import PUBLISHED
from results.records import attention_case, case_to_json
from results.slice import of_mask

CASE = case_to_json(attention_case(batch=1, num_heads=16, seqlen=4096, head_dim=64, dtype="bfloat16", causal=True))
REAL_MODELS = "20261130T204056Z-real_models-badfc1"
GROUPED = "h200-window_gqa"  # 32 query heads on 8 key heads


def peak_memory_mb(case: dict, name: str, mode: str, said: Declared | None = None) -> float | None:
    found = levels.memory_parts(case, facts_of(name, said).memory, mode)
    return found and found.peak


def parts(case: dict, name: str, mode: str) -> MemoryParts | None:
    return levels.memory_parts(case, facts_of(name).memory, mode)


def predicted_mb(case: dict, name: str, mode: str) -> float | None:
    return levels.memory_mb(case, facts_of(name).memory, mode)


def declared(run: str) -> Declared | None:
    """What a shipped run records of its implementations; nothing in the oldest."""
    return json.loads((PUBLISHED / run / "run.json").read_text()).get("implementations")


def largest_seqlen(case: dict, name: str, mode: str, memory_mb: float) -> int | None:
    return levels.largest_seqlen(case, facts_of(name).memory, mode, memory_mb)


def formula(name: str, mode: str) -> str | None:
    return levels.memory_formula(facts_of(name).memory, level_of("op"), mode)


def measured(runs: Sequence[str]) -> list[dict]:
    """Peaks of at least 64 MiB: below, the allocator's blocks count more than the tensors."""
    rows = [row for run in runs for row in columns.read(PUBLISHED / run / columns.NAME)]
    return [r for r in rows if r["metric"] == "peak_memory_mb" and (r["value"] or 0) >= 64]


@pytest.mark.slow
def test_every_predicted_peak_is_within_a_tenth_of_what_an_h200_measured() -> None:
    shipped = [path.name for path in PUBLISHED.glob("h200-*")]
    rows = [row for row in measured(shipped) if row["level"] == "op"]
    assert len(rows) >= 1231
    laws = {run: declared(run) for run in shipped}
    found = [(row, peak_memory_mb(row, row["implementation"], row["mode"], laws[row["run_id"]])) for row in rows]
    off = [row for row, predicted in found if predicted is None or abs(row["value"] / predicted - 1) > 0.1]
    assert [(row["implementation"], row["mode"], row["value"]) for row in off] == []


def now_declared(row: dict) -> MemoryLaw:
    return law_from_json(registry.get(row["implementation"], row["level"]).memory)


def test_peaks_of_our_kernels_are_within_a_fifth_where_no_heads_share_keys_and_nothing_is_padded() -> None:
    rows = [row for row in measured([REAL_MODELS]) if row["num_heads"] == row["num_kv_heads"]]
    rows = [row for row in rows if row["seqlen_q"] == row["seqlen_k"] >= 256 and row["head_dim"] in (64, 128, 256)]
    rows = [row for row in rows if not row["implementation"].startswith(("torch_sdpa", "flash_attn"))]
    assert {row["implementation"] for row in rows} == {"gluon_hopper", "triton_fa2"}
    said = declared(REAL_MODELS)
    found = [row["value"] / peak_memory_mb(row, row["implementation"], row["mode"], said) for row in rows]
    assert min(found) > 0.8 and max(found) < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("run", [REAL_MODELS, "h100-real_models"])
def test_peaks_of_sdpa_are_within_a_tenth_whatever_the_heads_and_head_dims_of_a_model(run: str) -> None:
    """But for few queries on many keys, where FlashAttention's forward keeps partial results."""
    rows = [row for row in measured([run]) if row["implementation"].startswith("torch_sdpa")]
    assert {(row["num_heads"], row["num_kv_heads"]) for row in rows} > {(32, 32), (32, 8), (71, 1)}
    assert {row["head_dim"] for row in rows} > {72, 80, 88, 100, 128}
    found = [(row, row["value"] / levels.memory_mb(row, now_declared(row), row["mode"])) for row in rows]
    off = [(row["mode"], row["seqlen_q"], row["seqlen_k"]) for row, ratio in found if abs(ratio - 1) > 0.1]
    assert {*off} == {("fwd", 300, 32768)}


def test_every_predicted_peak_of_decoding_is_within_a_tenth_of_what_an_h200_measured() -> None:
    found = []
    for manifest in PUBLISHED.glob("h200-*decode/run.json"):
        declared = json.loads(manifest.read_text())["implementations"]
        for row in measured([manifest.parent.name]):
            name = row["implementation"]
            law = now_declared(row) if name == "torch_naive" else facts_of(name, declared).memory
            found.append((row, row["value"] / levels.memory_mb(row, law, "decode")))
    assert {(row["page_size"], row["lengths"]) for row, _ in found} > {(0, "ragged"), (16, "ragged"), (16, "uniform")}
    assert [(row["implementation"], row["value"]) for row, ratio in found if abs(ratio - 1) > 0.1] == []


@pytest.mark.parametrize("run", ["h200-decode", "h200-mla_decode"])
def test_eager_decoding_keeps_its_scores_in_float32_and_gathers_pages(run: str) -> None:
    """A contiguous cache is read where it lies; of pages, keys and values are copied, also of latents."""
    law = registry.get("torch_naive", "decode").memory
    rows = [row for row in measured([run]) if row["implementation"] == "torch_naive"]
    assert {bool(row["page_size"]) for row in rows} == {run == "h200-mla_decode"}
    for row in rows:
        assert levels.memory_mb(row, law_from_json(law), "decode") == pytest.approx(row["value"], rel=0.004, abs=1.4)


@pytest.mark.parametrize("implementation", ["torch_naive", "triton_fa2", "torch_sdpa_math"])
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_the_largest_seqlen_fits_and_one_more_does_not(implementation: str, mode: str) -> None:
    longest = largest_seqlen(CASE, implementation, mode, 80 * 1024)
    fits, too_long = (
        peak_memory_mb({**CASE, "seqlen_q": n, "seqlen_k": n}, implementation, mode) for n in (longest, longest + 1)
    )
    assert fits <= 80 * 1024 < too_long


def test_four_times_the_memory_doubles_a_matrix_and_the_longest_without_counts_is_a_power_of_two() -> None:
    def grows(name: str) -> float:
        return largest_seqlen(CASE, name, "fwd", 65536) / largest_seqlen(CASE, name, "fwd", 16384)

    assert grows("torch_naive") == pytest.approx(2, rel=0.02)
    assert grows("triton_fa2") == pytest.approx(4, rel=0.001)
    longest = largest_seqlen(CASE, "flash_attn_2", "fwd", 1024)
    assert longest.bit_count() == 1
    assert predicted_mb({**CASE, "seqlen_q": longest, "seqlen_k": longest}, "flash_attn_2", "fwd") <= 1024
    assert predicted_mb({**CASE, "seqlen_q": 2 * longest, "seqlen_k": 2 * longest}, "flash_attn_2", "fwd") > 1024


def test_nothing_fits_no_memory_and_what_nobody_knows_is_not_guessed() -> None:
    assert largest_seqlen(CASE, "torch_naive", "fwd", 0.001) == 0
    assert largest_seqlen(CASE, "torch", "fwd", 1024) is None
    assert largest_seqlen({**CASE, "num_heads": None}, "torch_naive", "fwd", 1024) is None
    assert largest_seqlen(CASE, "torch_naive", "bwd", 1024) is None
    assert largest_seqlen(CASE, "triton_fa2", "fwd", 1e12) == levels.LONGEST
    assert levels.memory_mb(CASE, MemoryLaw(), "fwd") is None
    assert levels.largest_seqlen(CASE, MemoryLaw(), "fwd", 1024) is None


def test_grouped_heads_have_a_smaller_cache_and_a_latent_one_is_smaller_still() -> None:
    assert kv_cache_mb(CASE) == 2 * 16 * 4096 * 64 * 2 / 2**20
    assert kv_cache_mb({**CASE, "num_kv_heads": 4}) == kv_cache_mb(CASE) / 4
    assert kv_cache_mb({**CASE, "latent_dim": 512}) == 4096 * 512 * 2 / 2**20
    assert kv_cache_mb({**CASE, "num_kv_heads": None}) is None


def test_every_confirmed_law_has_both_passes_but_that_without_a_backward() -> None:
    laws = {name: facts_of(name).memory for name in known_names()}
    confirmed = {name: law for name, law in laws.items() if law.fwd}
    assert [name for name, law in confirmed.items() if not law.fwd_bwd] == ["gluon_fp8"]
    assert len(confirmed) == 12


@pytest.mark.parametrize("record", [{"growth": "cubic"}, {"fwd": {"tensors": 1}}, {"size": 1}])
def test_what_is_no_law_is_refused(record: dict) -> None:
    with pytest.raises(ValueError, match="growth|law"):
        law_from_json(record)


@pytest.mark.parametrize("name", ["torch_flex", "flash_attn_4", "gluon_hopper"])
def test_where_heads_share_keys_the_prediction_is_what_an_h200_measured(name: str) -> None:
    rows = [row for row in measured([GROUPED]) if row["implementation"] == name]
    assert {row["mode"] for row in rows} == {"fwd", "fwd_bwd"}
    for row in rows:
        assert peak_memory_mb(row, name, row["mode"]) == pytest.approx(row["value"], rel=0.005)


@pytest.mark.parametrize("run", ["h200-fa_paper-causal", "h200-fa_paper-full"])
def test_the_ring_of_dq_is_where_an_h200_has_it(run: str) -> None:
    rows = [row for row in measured([run]) if (row["implementation"], row["mode"]) == ("gluon_hopper", "fwd_bwd")]
    assert {(row["head_dim"], row["seqlen_q"]) for row in rows} >= {(128, 8192), (128, 16384), (64, 16384)}
    for row in rows:
        assert peak_memory_mb(row, "gluon_hopper", "fwd_bwd") == pytest.approx(row["value"], rel=0.05)


@pytest.mark.parametrize(
    ("mask", "causal", "window_size"),
    [("causal", True, None), ("full", False, None), ("causal window 1024", True, 1024), ("not stated", None, None)],
)
def test_a_formula_learns_of_the_mask_from_the_slices_words(mask, causal, window_size) -> None:
    assert of_mask(mask) == {"causal": causal, "window_size": window_size}
    unsaid = {name: value for name, value in CASE.items() if name not in of_mask(mask)}
    assert peak_memory_mb(unsaid | of_mask(mask), "gluon_hopper", "fwd_bwd") > 0
    assert peak_memory_mb(unsaid, "gluon_hopper", "fwd_bwd") > 0


def test_fp8_works_on_copies_of_8_bits_with_scales_and_pads_to_whole_blocks() -> None:
    rows = [row for row in measured(["h200-fa_paper-causal"]) if row["implementation"] == "gluon_fp8"]
    assert {row["head_dim"] for row in rows} == {64, 128, 256}
    for row in rows:
        assert peak_memory_mb(row, "gluon_fp8", "fwd") == pytest.approx(row["value"], abs=1e-4)
    odd = {**CASE, "num_heads": 1, "num_kv_heads": 1, "head_dim": 80, "head_dim_v": 80, "seqlen_q": 100}
    found = parts({**odd, "seqlen_k": 130}, "gluon_fp8", "fwd")
    scales = 4 * (1 + 2 + 2)
    assert found.workspace * 2**20 == 128 * (100 + 130 + 256) + scales


def test_a_peak_is_what_was_given_returned_and_worked_in_or_the_algorithm_alone() -> None:
    found = parts(CASE, "torch_naive", "fwd")
    tensor = 16 * 4096 * 64 * 2 / 2**20
    assert (found.given, found.returned, found.matrices) == (3 * tensor, tensor, 2 * 16 * 4096**2 * 2 / 2**20)
    assert found.workspace == tensor, "q scaled"
    assert parts(CASE, "triton_fa2", "fwd").matrices == 0
    law = law_from_json(registry.get("gluon_hopper").memory)
    wide = levels.memory_parts(CASE | {"head_dim": 512, "head_dim_v": 512}, law, "fwd")
    assert wide.workspace == 576 + 16 * 4096 * 4 / 2**20, "P and lse"
    assert "576 MiB of P" in levels.memory_formula(law, level_of("op"), "fwd")
    assert peak_memory_mb(CASE, "torch_naive", "fwd") == found.peak
    assert parts(CASE, "flash_attn_2", "fwd") is None
    alone, shared = (parts({**CASE, "num_kv_heads": heads}, "flash_attn_4", "fwd_bwd") for heads in (16, 8))
    assert alone.workspace < shared.workspace, "dk and dv are summed in float32 where heads share keys"
    assert predicted_mb(CASE, "flash_attn_2", "fwd") == pytest.approx(predicted_mb(CASE, "triton_fa2", "fwd"))
    assert predicted_mb(CASE, "nobody_knows", "fwd") is None


def test_a_formula_says_in_words_what_it_counts() -> None:
    assert formula("torch_naive", "fwd") == "q, k, v, out, 2 seqlen x seqlen matrices per head, q scaled"
    assert formula("triton_fa2_tf32", "fwd") == "q, k, v, out, no matrix, 1 float32 number per query"
    assert "three bfloat16 parts of each input in float32 at head_dim 17 to 128" in formula("triton_fa2", "fwd_bwd")
    assert "partial results in float32 where there are few rows of q" in formula("triton_fa2", "fwd")
    assert "q, k and v in 8 bits with a scale for each 128 rows" in formula("gluon_fp8", "fwd")
    assert "dk and dv summed in float32 where heads share keys" in formula("flash_attn_4", "fwd_bwd")
    assert "no matrix" in formula("flash_attn_2", "fwd")
    assert formula("nobody_knows", "fwd") is None
