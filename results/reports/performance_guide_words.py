"""What report performance_guide says in words, beside what own numbers say: claims, features, recommendations.

An own sentence is made from the numbers of one run, or from the memory formulas of level model where it says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from results import capabilities, levels
from results.derive import geometric_mean
from results.implementations import facts_of
from results.levels import model_memory
from results.levels.model_table import model
from results.recommend.model_fit import CARDS
from results.records import Case, Measurement, Status
from results.reports.claims import growth, with_sentences
from results.reports.layout import Claim, Row, Says, Section
from results.reports.notes import Note
from results.reports.own import OwnNumbers
from results.reports.rendering import Runs

Keep = Callable[[Measurement], bool]
_LONG, _SHORT = 4096, 512
_COUNTED = re.compile(r"\((\d+) ")  # cases of a span
_MODEL, _SERVED = "llama2-7b", 4096  # of the report's recommendation for serving, which names neither
# row -> what an implementation declares, and which cases show it when they ran
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
    "FP8 support": ("precision", "fp8", lambda case: False),  # of a case it is the implementation's alone
}
_PARTITIONING = "Work partitioning"
_BEYOND = "Features that the report does not name"
_VERSIONS = {  # column -> published names, and our decoding kernel beside them
    "FA1": ("flash_attn_1",),
    "FA2": ("flash_attn_2", "triton_split_kv"),
    "FA3": ("flash_attn_3", "flash_attn_3_fp8", "triton_split_kv"),
}
_SHOWN_BY = {  # whose run with such a case fills a feature
    "Multi-query attention": ("triton_fa2", "gluon_hopper"),
    "Sliding window": ("triton_fa2", "gluon_hopper"),
    "Paged KV cache": ("triton_split_kv",),
}
EVIDENCE = tuple((names, _FEATURES[feature][2]) for feature, names in _SHOWN_BY.items())


def sections(claims: Sequence[Claim], printed: Runs, notes: Sequence[Note], numbers: OwnNumbers) -> list[Section]:
    """Return the claims, the features by version and the recommendations by use case."""
    by_origin = {m.origin: m.printed or "" for _, measurements in printed for m in measurements}
    claimed = tuple(_claim(claim, by_origin, numbers) for claim in claims)
    features = next((note for note in notes if note.header[:1] == ("Feature",)), None)
    told = tuple((where, words, answer(numbers)) for where, words, answer in _SENTENCES)
    found = [with_sentences(Section("Claims", "", ("Where",), ("Figure",), (None,), claimed), told)]
    if features:
        versions = features.header[1:]
        rows = tuple(_feature(row, versions, numbers) for row in features.rows)
        words = (None,) * len(versions)
        found.append(Section("Features by version", "", ("Feature",), versions, words, rows, pooled=True))
        if more := _beyond(versions, numbers):
            found.append(Section(_BEYOND, "", ("Feature",), versions, words, more, pooled=True))
    cases = [note for note in notes if note.section.endswith("Recommendations by use case")]
    advice = tuple(_recommendation(note, numbers) for note in cases)
    return [*found, Section("Recommendations by use case", "", ("Use case",), ("Advice",), (None,), advice)]


def fits_24_gb(says: Says) -> str:
    """Return which attention a 24 GB card serves a context with, by formula: one prompt in one prefill."""
    case = Case(
        level="model",
        subject=says["subject"],
        batch=says["batch"],
        seqlen_q=says["seqlen"],
        seqlen_k=says["seqlen"],
        dtype="float16",
        causal=True,
    )
    usable = CARDS["24 GB"].usable_mb
    fits = {
        word: (levels.memory_mb(case, facts_of(name).memory, "prefill") or 0.0) <= usable
        for word, name in (("Standard", "torch_naive"), ("Flash", "triton_fa2"))
    }
    if len(set(fits.values())) == 1:
        return f"by formula both: {'yes' if fits['Flash'] else 'no'}"
    return "by formula only Flash: yes"


def _claim(claim: Claim, printed: Mapping[str, str], numbers: OwnNumbers) -> Row:
    groups = list(claim.figures)
    origins = [claim.origin] if len(groups) == 1 else [f"{claim.origin} / {group}" for group in groups]
    said = " to ".join(printed[origin] for origin in origins if origin in printed)
    answer = _ANSWERS.get(claim.origin.replace("\\", ""))
    return _answered(claim.origin.replace("\\", ""), said, answer(numbers) if answer else None)


def _answered(where: str, printed: str, own: str | None) -> Row:
    """Return a row of words; what stands in brackets behind a span says how many cases it is of."""
    return Row((where,), (printed,), (own,) if own else None, cases=tuple(map(int, _COUNTED.findall(own or ""))))


def _ratios(numbers: OwnNumbers, ours: str, base: str, metric: str, keep: Keep) -> list[float]:
    """Return base over ours for each own case that is kept."""
    name, baseline, found = numbers.own(ours), numbers.own(base), []
    for m in numbers.measurements:
        if m.implementation == name and m.metric == metric and m.value and keep(m):
            other = numbers.found.get((m.case, baseline, m.mode, metric))
            found += [other.value / m.value] if other and other.value else []
    return found


def _span(values: Sequence[float], what: str) -> str | None:
    if not values:
        return None
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    times = f"{low}x" if low == high else f"{low} to {high}x"
    return f"{times} ({len(values)} {what if len(values) == 1 else what + 's'})"


def _version(ours: str, base: str) -> Callable[[OwnNumbers], str | None]:
    def answer(numbers: OwnNumbers) -> str | None:
        at = [m for m in numbers.measurements if (m.case.seqlen_q, m.case.batch, m.mode) == (4096, 8, "fwd")]
        return _span(_ratios(numbers, ours, base, "latency_ms", lambda m: m in at), "case")

    return answer


def _fp8_rate(numbers: OwnNumbers) -> str | None:
    name = numbers.own("flash_attn_3_fp8")
    rates = [m for m in numbers.measurements if m.implementation == name and m.metric == "tflops" and m.value]
    if not rates:
        return None
    best = max(rates, key=lambda m: m.value)
    share = numbers.found.get((best.case, name, best.mode, "peak_percent"))
    words = f" ({share.value:.0f}% of the datasheet's peak)" if share and share.value else ""
    return f"{best.value / 1000:.2f} PFLOPS{words} at seqlen {best.case.seqlen_q}"


def _training(numbers: OwnNumbers) -> str | None:
    train = _ratios(numbers, _ours(numbers, "train"), "standard", "latency_ms", lambda m: m.mode == "train")
    return _span(train, "training case")


def _long_context(numbers: OwnNumbers, *, named: bool = False) -> str | None:
    """Say what long generation and long prompts gain, and by whom if `named`."""
    parts = []
    for mode, ours, what in (("decode", "triton_split_kv", "step"), ("prefill", _ours(numbers, "prefill"), "prompt")):
        ratios = _ratios(numbers, ours, "standard", "latency_ms", lambda m, mode=mode: _is_long(m, mode))
        if ratios:
            parts.append((f"{ours} " if named else "") + str(_span(ratios, f"long {what}")))
    return ", ".join(parts) or None


def _long_memory(numbers: OwnNumbers) -> str | None:
    ours = _ours(numbers, "prefill")
    return _span(_ratios(numbers, ours, "standard", "peak_memory_mb", lambda m: _is_long(m, "prefill")), "long prompt")


def _ours(numbers: OwnNumbers, mode: str) -> str:
    """Return what attends inside our models in a mode: on Hopper its own kernel, where the run has it."""
    there = {m.implementation for m in numbers.measurements if m.case.level == "model" and m.mode == mode}
    return "gluon_hopper" if "gluon_hopper" in there else numbers.own("flash_attn")


def _is_long(m: Measurement, mode: str) -> bool:
    return m.case.level == "model" and m.mode == mode and (m.case.seqlen_k or 0) > _LONG


def _short(numbers: OwnNumbers) -> str | None:
    def keep(m: Measurement) -> bool:
        return m.case.level == "op" and m.mode == "fwd" and (m.case.seqlen_k or 0) <= _SHORT

    return _span(_ratios(numbers, "flash_attn_2", "standard", "latency_ms", keep), "forward case")


def _feature(row: Sequence[str], versions: Sequence[str], numbers: OwnNumbers) -> Row:
    said = _work if row[0] == _PARTITIONING else _has
    own = tuple(said(row[0], version, numbers) for version in versions)
    return Row((row[0],), tuple(row[1:]), own if any(own) else None)


def _has(feature: str, version: str, numbers: OwnNumbers) -> str:
    """Return which of our implementations in a version's place have a feature: that ran with it, or that declare it.

    No is said of those that declare its absence; nothing where neither is known.
    """
    if feature not in _FEATURES:
        return ""
    key, wanted, shows = _FEATURES[feature]
    names = [numbers.own(name) for name in _VERSIONS.get(version, ())]
    facts = {name: facts_of(name, numbers.declared) for name in names}
    ran = [
        name
        for name in names
        if any(name == each and (shows(case) or facts[name].precision == wanted) for each, case in numbers.ran)
    ]
    said = {name: numbers.declared[name] for name in names if key in numbers.declared.get(name, {})}
    declared = [name for name, of_name in said.items() if wanted is None or of_name[key] == wanted]
    words = [f"{how}: {', '.join(which)}" for how, which in (("ran", ran), ("declared", declared)) if which]
    return words[0] if words else "no" * bool(said)


def _beyond(versions: Sequence[str], numbers: OwnNumbers) -> tuple[Row, ...]:
    """Return a row for each feature that was checked on a GPU: who was right in it there, in each version's place."""
    right = {gpu: capabilities.checked(entry) for gpu, entry in capabilities.record().items()}
    rows = []
    for each, words in capabilities.CAPABILITIES.items():
        if any(each in of_gpu for of_gpu in right.values()):
            own = tuple(_checked(each, version, right, numbers) for version in versions)
            rows.append(Row((words,), ("",) * len(versions), own))
    return tuple(rows)


def _checked(
    capability: str, version: str, right: Mapping[str, Mapping[str, Sequence[str]]], numbers: OwnNumbers
) -> str:
    names = [numbers.own(name) for name in _VERSIONS.get(version, ())]
    there = {gpu: [name for name in of_gpu.get(capability, ()) if name in names] for gpu, of_gpu in right.items()}
    return "; ".join(f"checked on {gpu}: {', '.join(found)}" for gpu, found in there.items() if found) or "no"


def _work(feature: str, version: str, numbers: OwnNumbers) -> str:
    """Return what dividing the work brings: the speed over that of the version before, in the report's shape."""
    before = {"FA2": ("flash_attn_2", "flash_attn_1"), "FA3": ("flash_attn_3", "flash_attn_1")}.get(version)
    return (before and _version(*before)(numbers) or "").replace("x (", "x the speed of FA1 (")


def _recommendation(note: Note, numbers: OwnNumbers) -> Row:
    title = note.lines[0].strip("*: ")
    printed = " ".join(line.removeprefix("- ") + "." for line in note.lines[1:])
    advice = next((make for start, make in _ADVICE.items() if title.startswith(start)), None)
    return _answered(title, printed, advice(numbers) if advice else None)


def _advise_training(numbers: OwnNumbers) -> str | None:
    gain = _training(numbers)
    ours = _ours(numbers, "train")
    memory = _ratios(numbers, ours, "standard", "peak_memory_mb", lambda m: m.mode == "train")
    return gain and _joined(f"{ours}: {gain}", _span(memory, "case"), "less memory", numbers, "train")


def _advise_long(numbers: OwnNumbers) -> str | None:
    gain, memory = _long_context(numbers, named=True), _long_memory(numbers)
    return gain and _joined(gain, memory, "less memory", numbers, "prefill")


def _advise_short(numbers: OwnNumbers) -> str | None:
    gain = _short(numbers)
    return gain and f"{numbers.own('flash_attn_2')}: {gain} at seqlen {_SHORT} and below"


def _joined(first: str, memory: str | None, what: str, numbers: OwnNumbers, mode: str) -> str:
    return ". ".join(part for part in (first, memory and f"{memory} {what}", _stops(numbers, mode)) if part)


def _stops(numbers: OwnNumbers, mode: str) -> str | None:
    """Say from which context the standard attention had no room."""
    name = numbers.own("standard")
    out = [
        m.case.seqlen_k
        for m in numbers.measurements
        if m.implementation == name and m.mode == mode and m.metric == "latency_ms"
        if m.case.level == "model" and m.status in (Status.OOM, Status.SKIPPED) and m.case.seqlen_k
    ]
    return f"{name} does not fit from {min(out):,} tokens" if out else None


def _advise_serving(numbers: OwnNumbers) -> str | None:
    """Say by formula how many sequences a card serves with and without a score matrix, prompts read one at a time."""
    card = "80 GB"
    users = {name: _users(name, CARDS[card].usable_mb) for name in ("torch_naive", "triton_fa2")}
    if not users["torch_naive"] or all(m.case.level != "model" for m in numbers.measurements):
        return None
    gain = users["triton_fa2"] / users["torch_naive"]
    return (
        f"By formula {card} hold {users['triton_fa2']} sequences of {_SERVED:,} tokens of {model(_MODEL).title} "
        f"without a score matrix and {users['torch_naive']} with one: {gain:.2f}x. The cache is the limit."
    )


def _users(name: str, usable_mb: float) -> int:
    case = {"dtype": "bfloat16", "batch": 1, "seqlen_q": _SERVED, "seqlen_k": _SERVED, "num_layers": None}
    work = facts_of(name).memory.confirmed("fwd")
    prompt = model_memory.inference(case, model(_MODEL), work)
    return max(0, int((usable_mb - prompt.peak + prompt.cache) // prompt.cache))


def _matrix(numbers: OwnNumbers) -> str | None:
    return _both_growths(numbers, "peak_memory_mb", "memory")


def _gain_by_length(numbers: OwnNumbers) -> str | None:
    """Say the speedup at the shortest and the longest sequence of batch 1, and how it grows."""
    found = _by_seqlen(numbers)
    if len(found) < 2:
        return None
    (short, first), (long, last) = min(found.items()), max(found.items())
    exponent = math.log(last / first) / math.log(long / short)
    return f"{first:.1f}x at {short:,} to {last:.1f}x at {long:,}: grows as N^{exponent:.1f}"


def _by_seqlen(numbers: OwnNumbers) -> dict[int, float]:
    """Return the forward speedup of batch 1 and 32 heads of 64 by sequence length."""
    name, base, found = numbers.own("flash_attn_2"), numbers.own("standard"), {}
    for m in numbers.measurements:
        shape = (m.case.level, m.case.batch, m.case.num_heads, m.case.head_dim)
        if (m.implementation, m.metric, m.mode) == (name, "latency_ms", "fwd") and shape == ("op", 1, 32, 64):
            other = numbers.found.get((m.case, base, m.mode, m.metric))
            if m.value and other and other.value:
                found[m.case.seqlen_k or 0] = other.value / m.value
    return found


def _memory_a_token(numbers: OwnNumbers) -> str | None:
    name = numbers.own("flash_attn_2")
    found = {
        m.case.seqlen_k: m.value
        for m in numbers.measurements
        if (m.implementation, m.metric, m.mode) == (name, "memory_per_token_mb", "fwd") and m.value
        if (m.case.level, m.case.batch, m.case.num_heads, m.case.head_dim) == ("op", 1, 32, 64)
    }
    if len(found) < 2:
        return None
    return f"{min(found.values()):.3g} to {max(found.values()):.3g} MB from {min(found):,} to {max(found):,} tokens"


def _time(numbers: OwnNumbers) -> str | None:
    return _both_growths(numbers, "latency_ms", "time")


def _both_growths(numbers: OwnNumbers, metric: str, what: str) -> str | None:
    """Say how a quantity of attention grows with the sequence, without and with ours."""
    names = [numbers.own(name) for name in ("standard", "flash_attn_2")]
    said = [growth(numbers, name, metric, "fwd") for name in names]
    return ", ".join(f"{what} of {name} {grows}" for name, grows in zip(names, said, strict=True) if grows) or None


def _less_than_training(numbers: OwnNumbers) -> str | None:
    """Say the geometric means of what generation and training gain."""
    kinds = (
        ("generation", "triton_split_kv", "decode"),
        ("generation by triton_step, projections included", "triton_step", "decode"),
        ("training", _ours(numbers, "train"), "train"),
    )
    means = [
        (what, _ratios(numbers, ours, "standard", "latency_ms", lambda m, mode=mode: m.mode == mode))
        for what, ours, mode in kinds
    ]
    return ", ".join(f"{what} {geometric_mean(ratios):.2f}x" for what, ratios in means if ratios) or None


_SENTENCES: Sequence[tuple[str, str, Callable[[OwnNumbers], str | None]]] = (
    ("Memory usage analysis / Key insight", "saving O(N²) memory", _matrix),
    ("Computational complexity", "Time: O(N² × d), same with Flash Attention", _time),
    ("Empirical scaling / Observation", "Speedup increases quadratically with sequence length", _gain_by_length),
    ("Memory per token / Observation", "Flash Attention memory per token is constant", _memory_a_token),
    ("Inference / Note", "Inference speedup less dramatic than training", _less_than_training),
)
_ADVICE: Mapping[str, Callable[[OwnNumbers], str | None]] = {
    "Training": _advise_training,
    "Long context": _advise_long,
    "Short sequences": _advise_short,
    "Multi-user serving": _advise_serving,
}
_ANSWERS: Mapping[str, Callable[[OwnNumbers], str | None]] = {
    "H100 80GB (Hopper) / Key insight": _fp8_rate,
    "Key improvements / FA2": _version("flash_attn_2", "flash_attn_1"),
    "Key improvements / FA3 (FP16)": _version("flash_attn_3_fp16", "flash_attn_2"),
    "Key improvements / FA3 (FP8)": _version("flash_attn_3_fp8", "flash_attn_2"),
    "Recommendations by use case / training": _training,
    "Recommendations by use case / long context": _long_context,
    "Recommendations by use case / long context, memory": _long_memory,
    "Recommendations by use case / short sequences": _short,
}
