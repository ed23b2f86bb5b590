"""Errors below what the dtype of the results allows, or above what a correct result has."""

from results.checks.finding import Found, Numbers, said
from results.levels.decode import lengths_of
from results.records import case_to_json

# Largest relative error of rounding once to the dtype. The root mean square of many roundings is about 0.4 of it.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
SHARE = 1 / 8
# The gate allows twice the error of torch_naive, which is at most 2 roundings on normal data, and one rounding. The
# shipped runs have at most 2.2 in operators, decoding and layers.
MOST = 8.0
_SHORTEST = 16  # keys: of fewer, results are large and can be exact, as the first row of a causal mask is


def unlikely(numbers: Numbers, rule: str) -> Found:
    """An error on ordinary data that is smaller than rounding leaves, or so large in 16 bits that no result has it."""
    for m in numbers.of("error_out", "error_dq", "error_dk", "error_dv"):
        case, rounding = m.case, ROUNDING.get(m.case.dtype or "")
        if not rounding or case.inputs not in (None, "normal"):
            continue
        in_full = numbers.facts(m).precision is None and case.cache_dtype in (None, case.dtype)
        lengths = lengths_of(case_to_json(case)) if case.lengths not in (None, "uniform") else None
        keys = min(lengths) if lengths else case.seqlen_k or 0  # of the shortest sequence
        too_exact = keys >= _SHORTEST and m.value < SHARE * rounding
        too_wrong = case.dtype != "float32" and in_full and m.value > MOST * rounding
        told = too_exact if rule == "too_exact" else too_wrong
        if told:
            yield said(rule, m, leaves=0.4 * rounding, times=m.value / rounding, most=MOST)
