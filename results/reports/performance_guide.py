"""Answers to the claims of report performance_guide, its features and its recommendations.

An answer comes from the numbers of one run, or from the memory formulas of level model where it says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from results import capabilities, levels
from results.implementations import facts_of
from results.levels import model_memory
from results.levels.model_table import model
from results.recommend.model_fit import CARDS
from results.records import Case, Measurement
from results.reports.claims import answered, span, words_table
from results.reports.declared import advice, picks
from results.reports.layout import Facts, Note, Section, TableRow, shipped_notes
from results.reports.own import OwnNumbers

_SERVED = ("llama2-7b", 4096)  # our choice of model and context, which the report's advice on serving leaves open

_PICKS = picks("performance_guide")


def fp8_rate(numbers: OwnNumbers) -> str | None:
    """Return the highest rate in FP8."""
    rates = [m for m in _PICKS["fp8_rate"].measurements(numbers) if m.value]
    if not rates:
        return None
    best = max(rates, key=lambda m: m.value)
    peak = numbers.found.get((best.case, best.implementation, best.mode, "peak_percent"))
    words = f" ({peak.value:.0f}% of the datasheet's peak)" if peak and peak.value else ""
    return f"{best.value / 1000:.2f} PFLOPS{words} at seqlen {best.case.seqlen_q}"


def memory_per_token(numbers: OwnNumbers) -> str | None:
    """Return the range of the memory per token."""
    measurements = _PICKS["memory_per_token"].measurements
    found = {m.case.seqlen_k: m.value for m in measurements(numbers) if m.value}
    if len(found) < 2:
        return None
    return f"{min(found.values()):.3g} to {max(found.values()):.3g} MB from {min(found):,} to {max(found):,} tokens"


# TableRow of the feature table -> the declared fact with its value, and the cases that show the feature when they ran.
_FEATURES: Mapping[str, tuple[str, object, Callable[[Case], object]]] = {
    "Basic attention": ("family", None, lambda case: True),
    "Causal masking": ("causal", True, lambda case: case.causal),
    "Multi-query attention": (
        "gqa",
        True,
        lambda case: case.latent_dim == 0 and case.num_kv_heads == 1 != case.num_heads,
    ),
    "Sliding window": ("window", True, lambda case: case.window_size),
    "Paged KV cache": ("paged", True, lambda case: case.page_size),
    "FP8 support": ("precision", "fp8", lambda case: False),  # a property of the implementation, not of a case
}
_VERSIONS = {  # column -> published names, and our decode kernel
    "FA1": ("flash_attn_1",),
    "FA2": ("flash_attn_2", "triton_split_kv"),
    "FA3": ("flash_attn_3", "flash_attn_3_fp8", "triton_split_kv"),
}
_PARTITIONING = {"FA2": "fa2_over_fa1", "FA3": "fa3_over_fa1"}  # versions that the row compares with FA1
# Runs that show a feature fill its row: any of these implementations in such a case.
EVIDENCE = (
    (("triton_fa2", "gluon_hopper"), _FEATURES["Multi-query attention"][2]),
    (("triton_fa2", "gluon_hopper"), _FEATURES["Sliding window"][2]),
    (("triton_split_kv",), _FEATURES["Paged KV cache"][2]),
)


def more_sections(printed: Sequence[Measurement], numbers: OwnNumbers) -> list[Section]:
    """Return the features by version and the recommendations by use case."""
    notes, found = shipped_notes("performance_guide"), []
    for note in notes:
        if note.header[:1] == ("Feature",):
            by_version = words_table(note, "Features by version", partial(_has, numbers), pooled=True)
            found.append(by_version)
            if more := _beyond(note.header[1:], numbers):
                found.append(replace(by_version, title="Features that the report does not name", rows=more))
    cases = [note for note in notes if note.section.endswith("Recommendations by use case")]
    rows = tuple(_recommendation(note, numbers) for note in cases)
    return [*found, Section("Recommendations by use case", "", ("Use case",), ("Advice",), (None,), rows)]


def fits_24_gb(facts: Facts) -> str:
    """Return which attention serves a context on a 24 GB card, by formula: one prompt in one prefill."""
    sizes = {"seqlen_q": facts["seqlen"], "seqlen_k": facts["seqlen"], "batch": facts["batch"]}
    case = Case(level="model", subject=facts["subject"], dtype="float16", causal=True, **sizes)
    standard, flash = (
        (levels.memory_mb(case, facts_of(name).memory, "prefill") or 0.0) <= CARDS["24 GB"].usable_mb
        for name in ("torch_naive", "triton_fa2")
    )
    if standard != flash:
        return "by formula only Flash: yes"
    return f"by formula both: {'yes' if flash else 'no'}"


def _has(numbers: OwnNumbers, feature: str, version: str) -> str:
    """Return which of our implementations for a version ran with a feature, or else which declare it.

    The answer is "no" if they declare its absence, and empty if nothing is known. Work partitioning is the speed of a
    version over FA1 in the report's shape.
    """
    if feature == "Work partitioning" and version in _PARTITIONING:
        gain = span(numbers, _PICKS[_PARTITIONING[version]], "case")
        return (gain or "").replace("x (", "x the speed of FA1 (")
    if feature not in _FEATURES:
        return ""
    key, wanted, shows = _FEATURES[feature]
    names = [numbers.own(name) for name in _VERSIONS.get(version, ())]
    precise = [name for name in names if facts_of(name, numbers.declared).precision == wanted]
    ran = [name for name in names if any(name == own and (shows(case) or name in precise) for own, case in numbers.ran)]
    declared = {name: numbers.declared[name][key] for name in names if key in numbers.declared.get(name, {})}
    having = [name for name, value in declared.items() if wanted in (None, value)]
    words = [f"{how}: {', '.join(which)}" for how, which in (("ran", ran), ("declared", having)) if which]
    return words[0] if words else "no" * bool(declared)


def _beyond(versions: Sequence[str], numbers: OwnNumbers) -> tuple[TableRow, ...]:
    """Return a row for each feature that was checked on a GPU: the implementations that passed, by version."""
    right = capabilities.right()
    rows = []
    for each, words in capabilities.CAPABILITIES.items():
        if any(each in of_gpu for of_gpu in right.values()):
            own = []
            for version in versions:
                names = [numbers.own(name) for name in _VERSIONS.get(version, ())]
                there = {gpu: [name for name in of_gpu.get(each, ()) if name in names] for gpu, of_gpu in right.items()}
                checked = (f"checked on {gpu}: {', '.join(found)}" for gpu, found in there.items() if found)
                own.append("; ".join(checked) or "no")
            rows.append(TableRow((words,), ("",) * len(versions), tuple(own)))
    return tuple(rows)


def _recommendation(note: Note, numbers: OwnNumbers) -> TableRow:
    title = note.lines[0].strip("*: ")
    printed = " ".join(line.removeprefix("- ") + "." for line in note.lines[1:])
    answer = next((answer for start, answer in advice("performance_guide").items() if title.startswith(start)), None)
    return answered(title, printed, answer(numbers) if answer else None)


def serving(numbers: OwnNumbers) -> str | None:
    """Return by formula how many sequences a card serves with and without a score matrix, reading one prompt a time."""
    subject, context = _SERVED
    with_matrix, without = (_users(name, CARDS["80 GB"].usable_mb) for name in ("torch_naive", "triton_fa2"))
    if not with_matrix or all(m.case.level != "model" for m in numbers.measurements):
        return None
    return (
        f"By formula 80 GB hold {without} sequences of {context:,} tokens of {model(subject).title} without a score "
        f"matrix and {with_matrix} with one: {without / with_matrix:.2f}x. The cache is the limit."
    )


def _users(name: str, usable_mb: float) -> int:
    subject, context = _SERVED
    case = {"dtype": "bfloat16", "batch": 1, "seqlen_q": context, "seqlen_k": context, "num_layers": None}
    prompt = model_memory.inference(case, model(subject), facts_of(name).memory.confirmed("fwd"))
    return max(0, int((usable_mb - prompt.peak + prompt.cache) // prompt.cache))
