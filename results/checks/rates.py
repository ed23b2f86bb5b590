"""Tokens and samples a second of whole models that their weights do not allow on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results import levels
from results.checks.finding import Numbers, what
from results.checks.memory import parameters
from results.checks.speed import HEADROOM
from results.gpus import bounds_of
from results.levels.tensors import DTYPE_BYTES
from results.records import Measurement

Found = Iterator[tuple[Sequence[Measurement], str]]

# Operations of a token for each parameter: a multiply-add forward, twice that backward (Kaplan et al., Scaling Laws for
# Neural Language Models, arXiv:2001.08361, section 2.1; attention left out).
OPERATIONS = {"train": 6, "prefill": 2}


def above_model_peak(numbers: Numbers) -> Found:
    """More tokens a second than the device has operations for: 6 a parameter in training, 2 in prefill."""
    for m, tokens in _tokens_per_s(numbers):
        each, count = OPERATIONS.get(m.mode or ""), parameters(m.case)
        if each and count:
            chip = bounds_of(numbers.run(m).gpu_name)
            most, rate = chip.tflops(m.case.dtype or "float16"), each * count * tokens / 1e12
            if rate > HEADROOM * most:
                yield (
                    (m,),
                    f"{what(m)} is said to work through {tokens:.0f} tokens a second; at {each} operations for each of "
                    f"{count / 1e9:.3g} x 10^9 parameters that is {rate:.0f} TFLOP/s, above the {most:g} of "
                    f"{chip.source}.",
                )


def above_weights_bandwidth(numbers: Numbers) -> Found:
    """More steps of decoding a second than the device can read the weights, where the cache is not known either.

    With a known cache results.checks.models counts both.
    """
    for m, tokens in _tokens_per_s(numbers):
        count = parameters(m.case)
        if m.mode == "decode" and count and m.case.batch and not levels.bytes_moved(m.case, m.mode):
            chip = bounds_of(numbers.run(m).gpu_name)
            read = tokens / m.case.batch * count * DTYPE_BYTES.get(m.case.dtype or "float16", 2) / 1e9
            if read > HEADROOM * chip.bandwidth_gb_per_s:
                yield (
                    (m,),
                    f"{what(m)} is said to give {tokens:.0f} tokens a second; reading the weights for each step is "
                    f"{read:.0f} GB/s, above the {chip.bandwidth_gb_per_s:g} of {chip.source}.",
                )


def _tokens_per_s(numbers: Numbers) -> Iterator[tuple[Measurement, float]]:
    for m in numbers.of("tokens_per_s", "samples_per_s"):
        length = 1 if m.metric == "tokens_per_s" else m.case.seqlen_q
        if length:
            yield m, m.value * length
