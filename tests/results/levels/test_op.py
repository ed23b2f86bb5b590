"""Operations and bytes of the operator."""

from results import levels
from results.levels.memory import MemoryLaw, Workspace, law_from_json, law_to_json
from results.records import attention_case

CASE = attention_case(batch=2, num_heads=8, seqlen=512, head_dim=64, dtype="bfloat16", causal=False, num_kv_heads=2)
Q, KV, LSE = 2 * 8 * 512 * 64 * 2, 2 * 2 * 512 * 64 * 2, 2 * 8 * 512 * 4


def test_the_backward_has_five_products_for_the_two_of_the_forward() -> None:
    forward = 2 * 2 * 8 * 512 * 512 * 128
    assert levels.flops(CASE, "fwd") == forward
    assert levels.flops(CASE, "bwd") == 2.5 * forward
    assert levels.flops(CASE, "fwd_bwd") == 3.5 * forward
    assert levels.flops(CASE, "decode") is None


def test_bytes_are_inputs_read_and_outputs_written_once() -> None:
    assert levels.bytes_moved(CASE, "fwd") == Q + 2 * KV + Q + LSE
    assert levels.bytes_moved(CASE, "bwd") == (Q + 2 * KV + 2 * Q + LSE) + (Q + 2 * KV)


def test_a_law_reads_back_as_it_was_declared() -> None:
    law = MemoryLaw("linear", Workspace(numbers=1), Workspace(quantised_rows=128, quantised_head_dims=(64, 128)))
    declared = law_to_json(law)
    assert declared == {
        "growth": "linear",
        "fwd": {"numbers": 1},
        "fwd_bwd": {"quantised_rows": 128, "quantised_head_dims": [64, 128]},
    }
    assert law_from_json(declared) == law
