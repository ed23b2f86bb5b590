"""Tokens and samples a second of whole models that their weights do not allow on the device."""

from collections.abc import Iterator
from operator import attrgetter

from results import levels
from results.checks.finding import Found, Numbers, said
from results.checks.memory import parameters
from results.checks.speed import AGREES, HEADROOM
from results.gpus import bounds_of
from results.levels.tensors import DTYPE_BYTES
from results.metrics import METRICS
from results.records import Measurement

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
                facts = {"tokens": tokens, "each": each, "billions": count / 1e9, "rate": rate}
                yield said("above_model_peak", m, most=most, chip=chip, **facts)


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
                yield said("above_weights", m, tokens=tokens, read=read, chip=chip)


def throughput_and_time(numbers: Numbers) -> Found:
    """Tokens or samples a second that are not the batch over the time of the same call."""
    cell = attrgetter("run_id", "case", "implementation", "mode")
    times = numbers.grouped(cell, "latency_ms")
    for m in numbers.of("tokens_per_s", "samples_per_s"):
        rows = times.get(cell(m), ())
        same = [time for time in rows if m.timing in (None, time.timing)]
        tokens = m.case.seqlen_q if m.metric == "tokens_per_s" and m.mode != "decode" else 1
        if not same or not m.case.batch or not tokens:
            continue
        rates = [1e3 * m.case.batch * tokens / time.value for time in same]
        if not any(abs(m.value / rate - 1) < AGREES for rate in rates):
            facts = {"unit": METRICS[m.metric].label.lower(), "rate": rates[0], "times": m.value / rates[0]}
            yield said("throughput_and_time", m, same[0], **facts)


def _tokens_per_s(numbers: Numbers) -> Iterator[tuple[Measurement, float]]:
    for m in numbers.of("tokens_per_s", "samples_per_s"):
        length = 1 if m.metric == "tokens_per_s" else m.case.seqlen_q
        if length:
            yield m, m.value * length
