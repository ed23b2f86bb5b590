"""The nouns of the project: Case, Measurement, Run, Status. Standard library only.

`None` always means "the source did not say", never a default. Features that are known to be absent are 0
(`window_size=0`: no sliding window, `page_size=0`: contiguous keys, `latent_dim=0`: no latent).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

from results import batches, features
from results.metrics import METRICS
from results.schema import LISTS, REQUIRED, Field, fault, magnitude_fits, rule, ruled, schema_of, time_fault

DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn")
LEVELS = ("op", "decode", "layer", "model")
MODES = ("fwd", "bwd", "fwd_bwd", "step", "prefill", "decode", "train")
TIMINGS = ("kernel", "eager")
SOURCES = ("local", "published", "upload", "shipped")
STATISTICS = ("median", "mean", "max", "single", "printed")
INPUTS = ("normal", "outliers", "large", "heavy_tails")  # runner.measure.inputs says what each is
LENGTHS = ("uniform", "ragged")  # of the sequences of a decoding batch; results.levels.decode says what ragged is
MAX_RAGGED = 4096  # sequences of a batch whose lengths differ, which are handled one by one
OPTIMIZERS = ("none", "sgd", "adamw_bf16", "adamw_fp32_master")  # results.levels.model says what each keeps
ROUNDING = 1e-9  # relative rounding error allowed between neighboring statistics
_SORTED = json.JSONEncoder(sort_keys=True)  # made once: json.dumps makes one for every text
PEAKS = (*DTYPES, "tf32")  # keys of measured peaks; float32 is IEEE, tf32 is float32 on tensor cores


class Status(StrEnum):
    """How a planned number ended; numbers are None unless OK."""

    OK = "ok"
    OOM = "oom"  # out of device memory
    OUT_OF_RESOURCES = "out_of_resources"  # out of shared memory, registers or threads
    UNSUPPORTED = "unsupported"
    INCORRECT = "incorrect"  # failed the check against the oracle, so it has no speed
    TIMEOUT = "timeout"
    ERROR = "error"
    SKIPPED = "skipped"


class RecordError(ValueError):
    """A record that breaks a rule of this module; the message names the field, the value and what is possible."""


@dataclass(frozen=True)
class Case:
    """What is computed. Flat and hashable; each field is a column."""

    level: str | None = rule("op", choices=LEVELS)
    subject: str | None = "attention"
    batch: int | None = rule(minimum=1)
    num_heads: int | None = rule(minimum=1)
    num_kv_heads: int | None = rule(minimum=1)
    seqlen_q: int | None = rule(minimum=1)
    seqlen_k: int | None = rule(minimum=1)
    head_dim: int | None = rule(minimum=1)
    head_dim_v: int | None = rule(minimum=1)
    dtype: str | None = rule(choices=DTYPES)
    causal: bool | None = None
    window_size: int | None = rule(minimum=0)
    page_size: int | None = rule(minimum=0)
    latent_dim: int | None = rule(minimum=0)
    inputs: str | None = rule(choices=INPUTS, later=True)  # the data it is computed on
    cache_dtype: str | None = rule(choices=DTYPES, later=True)  # how the KV cache is stored; dtype if not quantised
    # Distribution of lengths with mean seqlen_k; or a spec of results.batches, with the largest seqlen_q and seqlen_k.
    lengths: str | None = rule(choices=LENGTHS, pattern=batches.PATTERN, later=True)
    num_layers: int | None = rule(minimum=1, later=True)  # number of layers that are built
    optimizer: str | None = rule(choices=OPTIMIZERS, later=True)
    checkpointing: bool | None = rule(later=True)  # the backward recomputes activations
    compiled: bool | None = rule(later=True)  # whether the model is compiled by torch.compile
    features: str | None = rule(later=True)  # text of results.features, such as "softcap=50,sinks"; None: no feature

    def __post_init__(self) -> None:
        _check(self, _CASE_RULES)
        for name in ("causal", "checkpointing", "compiled"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise RecordError(f"{name} is {value!r}; possible are true and false.")
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise RecordError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}.")
        if self.lengths not in (None, "uniform") and (self.batch or 0) > MAX_RAGGED:
            raise RecordError(
                f"batch is {self.batch}; with {self.lengths:.60} lengths at most {MAX_RAGGED} is possible."
            )
        if batches.is_spec(self.lengths):
            _check_batch(self)
        if self.features is not None:
            if not isinstance(self.features, str):
                raise RecordError(f"features is {self.features!r}; it must be text, such as 'softcap=50,sinks'.")
            try:
                object.__setattr__(self, "features", features.canonical(self.features))
            except ValueError as error:
                raise RecordError(str(error)) from error
            if reason := features.reason_against(case_to_json(self)):
                raise RecordError(reason)

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names of `kernels.registry.FEATURES` that the case's features need."""
        return features.capabilities(self.features)


CASE_SCHEMA = schema_of(Case)
_CASE_RULES = ruled(CASE_SCHEMA)
CASE_FIELDS = tuple(CASE_SCHEMA)
# Not part of a measurement's id where the source did not say, so that the ids of the first journals hold.
LATER_CASE_FIELDS = tuple(name for name, rules in CASE_SCHEMA.items() if rules.later)


def attention_case(*, seqlen: int, **sizes: Any) -> Case:
    """Return a fully specified case of the attention operator: every field of its shape said, absent features 0.

    Keys are as many as queries, key heads as query heads, and values as wide as keys, unless they are given.
    """
    usual = {"num_kv_heads": sizes.get("num_heads"), "seqlen_k": seqlen, "head_dim_v": sizes.get("head_dim")}
    return whole_case("op", "attention", sizes, usual, seqlen_q=seqlen)


def decode_case(*, context: int, query_tokens: int = 1, latent_dim: int = 0, **sizes: Any) -> Case:
    """Return a fully specified decoding case: query tokens of each sequence against `context` cached tokens.

    `page_size` 0 is a contiguous cache, `cache_dtype` None that of q. With `latent_dim` the cache holds latents, and
    head_dim is the width of a record. The mask is causal and aligned bottom-right: the last query token sees the whole
    context.
    """
    usual = {"head_dim_v": latent_dim or sizes.get("head_dim"), "cache_dtype": sizes.get("dtype"), "lengths": "uniform"}
    fields = {"seqlen_q": query_tokens, "seqlen_k": context, "causal": True, "latent_dim": latent_dim}
    return whole_case("decode", "mla" if latent_dim else "attention", sizes, usual, **fields)


def layer_case(subject: str, *, seqlen: int, **sizes: Any) -> Case:
    """Return a fully specified case of a layer: a subject of level layer, on x: (batch, seqlen, num_heads x head_dim).

    `latent_dim` is the width of the latent that keys and values come from; 0 without one.
    """
    return whole_case("layer", subject, sizes, {"head_dim_v": sizes.get("head_dim")}, seqlen_q=seqlen, seqlen_k=seqlen)


def whole_case(level: str, subject: str, sizes: dict[str, Any], usual: dict[str, Any], **fields: Any) -> Case:
    """Return a case with `usual` in place of sizes that are 0 or not given. Raises TypeError for a missing size."""
    said = _ABSENT | fields | sizes | {name: value for name, value in usual.items() if not sizes.get(name)}
    if missing := [name for name in _STATED if said.get(name) is None]:
        raise TypeError(f"A whole case of level {level} needs {', '.join(missing)}.")
    return Case(level=level, subject=subject, **said)


_ABSENT = {"window_size": 0, "page_size": 0, "latent_dim": 0}
_STATED = ("batch", "num_heads", "num_kv_heads", "seqlen_q", "head_dim", "dtype", "causal")


@dataclass(frozen=True)
class Measurement:
    """One number: of what case, by which implementation, how it was taken, its spread and its status."""

    run_id: str
    case: Case
    implementation: str
    metric: str  # a key of results.metrics.METRICS
    status: Status = rule(REQUIRED, choices=tuple(Status))
    mode: str | None = rule(choices=MODES)
    timing: str | None = rule(choices=TIMINGS)  # for latencies; None elsewhere or when the source did not say
    baseline: str | None = None  # for printed ratios: what the implementation is compared with
    value: float | None = rule(only_if_ok=True)  # in the metric's unit
    statistic: str | None = rule(choices=STATISTICS)  # kind of `value`
    mean: float | None = rule(only_if_ok=True)
    std: float | None = rule(only_if_ok=True, least=0.0)
    p20: float | None = rule(only_if_ok=True)
    p80: float | None = rule(only_if_ok=True)
    ci_low: float | None = rule(only_if_ok=True)  # 95 % interval of the median
    ci_high: float | None = rule(only_if_ok=True)
    n: int | None = rule(minimum=1)  # samples that were taken
    samples: tuple[float, ...] = ()
    note: str | None = None  # why there is no number, or what to know about it
    flags: tuple[str, ...] = ()
    printed: str | None = None  # the published cell to the letter
    origin: str | None = None  # where in the source: section, row and column
    time: str | None = None  # UTC, ISO 8601
    round_sizes: tuple[int, ...] = rule((), later=True)  # samples of each round, in their order; () if not said
    sm_clock_mhz: float | None = rule(later=True, least=0.0)  # median SM clock while it was taken
    config: str | None = rule(later=True)  # tiles, warps, stages chosen by the implementation; None without a choice
    card: str | None = rule(later=True)  # card of the run that measured it; None if the run has one card

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        _check(self, _MEASUREMENT_RULES)
        for name in NUMBERS:
            number = getattr(self, name)
            if number is None:
                continue
            if self.status is not Status.OK:
                raise RecordError(f"{name} is {number} although the status is {self.status}; only ok has numbers.")
            if not math.isfinite(number):
                raise RecordError(f"{name} is {number}; a number must be finite.")
        if self.status is Status.OK and self.value is None:
            raise RecordError("value is missing although the status is ok.")
        _check_signs(self)
        _check_spread(self)
        count = len(self.samples) or self.n
        if self.samples and self.n is not None and self.n != len(self.samples):
            raise RecordError(f"n is {self.n}, but there are {len(self.samples)} samples.")
        if self.round_sizes and (min(self.round_sizes) < 1 or (count is not None and sum(self.round_sizes) != count)):
            sizes = " + ".join(map(str, self.round_sizes))
            raise RecordError(f"round_sizes are {sizes}; each must be at least 1, and together {count} samples.")

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what names the number; of two with one key the first counts."""
        key = (self.run_id, self.case, self.implementation, self.mode, self.timing, self.metric, self.baseline)
        return *key, self.origin

    @property
    def measurement_id(self) -> str:
        """Return twenty hex digits of the key, so that a repeated line adds nothing."""
        run_id, case, *others = self.key
        fields = case_to_json(case)
        said = {name: value for name, value in fields.items() if value is not None or name not in LATER_CASE_FIELDS}
        text = _SORTED.encode((run_id, said, *others))
        return hashlib.sha256(text.encode()).hexdigest()[:20]


MEASUREMENT_SCHEMA = schema_of(Measurement, leave_out="case")
_MEASUREMENT_RULES = ruled(MEASUREMENT_SCHEMA)
NUMBERS = tuple(name for name, rules in MEASUREMENT_SCHEMA.items() if rules.only_if_ok)
_PERCENTILES, _INTERVAL = ("p20", "value", "p80"), ("ci_low", "value", "ci_high")
_LINE_FIELDS = frozenset((*MEASUREMENT_SCHEMA, *CASE_FIELDS, "measurement_id"))
_LISTS = tuple(name for name, rules in MEASUREMENT_SCHEMA.items() if rules.kind in LISTS)


@dataclass(frozen=True)
class Run:
    """Where and when numbers were taken, and how to repeat it."""

    run_id: str
    source: str = rule(REQUIRED, choices=SOURCES)  # published: by others; shipped: our own, with the repository
    created: str | None = None  # UTC, ISO 8601
    title: str | None = None
    report: str | None = None  # the published report's name under results/reports
    gpu_name: str | None = None  # name reported by the driver; the processor's name for CPU runs
    gpu_uuid: str | None = None  # hashed
    device_type: str | None = None  # cuda or cpu
    compute_capability: str | None = None  # "9.0"
    sm_count: int | None = None
    gpu_memory_mb: float | None = None
    l2_mb: float | None = None
    power_limit_w: float | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    torch: str | None = None
    triton: str | None = None
    python: str | None = None
    os: str | None = None
    cpu: str | None = None
    host: str | None = None  # hashed
    git_commit: str | None = None
    git_dirty: bool | None = None
    kernel_hash: str | None = None  # hash of the kernel sources
    tf32: bool | None = None
    protocol: str | None = None
    seed: int | None = rule(largest=2**63 - 1)
    command: str | None = None  # repeats the run
    notes: str | None = None
    measured_tflops: dict[str, float] | None = None  # a large matrix product, by dtype or "tf32"
    measured_gbs: float | None = None  # a copy in device memory, 10^9 bytes read or written per second
    sweep: dict[str, Any] = field(default_factory=dict)
    # By name what each declares: level, family, precision, memory (its law, see results.levels.memory), colour.
    implementations: dict[str, dict[str, Any]] | None = rule(later=True)
    # By name the cards of a run that was spread over several: host, gpu_name, and the calibration case's latencies.
    cards: dict[str, dict[str, Any]] | None = rule(later=True)
    # The other version measured in the same run: label, git_commit, kernel_hash, torch, triton, python.
    against: dict[str, Any] | None = rule(later=True)
    empty_launch_ms: float | None = rule(later=True)  # between two events around an empty kernel: in every kernel time

    def __post_init__(self) -> None:
        _check(self, _RUN_RULES)
        if not self.run_id or "/" in self.run_id or self.run_id.startswith("."):
            raise RecordError(f"run_id {self.run_id!r} is not a plain folder name.")
        for field_name, texts in _FACTS_IN_TEXT.items():
            for name, facts in (getattr(self, field_name) or {}).items():
                _check_facts(f"{field_name} of {name}", facts, texts)
        for name, facts in (self.cards or {}).items():
            for key, latency in (facts.get("calibration") or {}).items():
                fits = isinstance(latency, int | float) and latency > 0 and magnitude_fits(latency)
                if isinstance(latency, bool) or not fits:
                    raise RecordError(f"cards of {name}: the calibration of {key} is {latency!r}, not a time above 0.")
        for name, rate in (self.measured_tflops or {}).items():
            _one_of("measured_tflops", name, PEAKS)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
                raise RecordError(f"measured_tflops of {name} is {rate!r}; it must be a number above 0.")


RUN_SCHEMA = schema_of(Run)
_RUN_RULES = ruled(RUN_SCHEMA)
# Left out of what is written where the record does not say.
LATER_RUN_FIELDS = tuple(name for name, rules in RUN_SCHEMA.items() if rules.later)


_FACTS_IN_TEXT = {"implementations": ("level", "family", "precision", "colour"), "cards": ("host", "gpu_name")}
_FACTS_IN_OBJECTS = ("memory", "calibration")


def _check_facts(what: str, facts: Any, texts: Sequence[str]) -> None:
    """Raise RecordError if what a run says of an implementation or a card has the wrong kind."""
    if not isinstance(facts, dict):
        raise RecordError(f"{what} is {facts!r}; it must be an object.")
    for kind, word, names in ((str, "text", texts), (dict, "an object", _FACTS_IN_OBJECTS)):
        for name in names:
            if not isinstance(facts.get(name), kind | None):
                raise RecordError(f"{what}: {name} is {facts[name]!r}; it must be {word}.")


def _check_batch(case: Case) -> None:
    """Raise RecordError if the fields of a case are not those of its batch spec, as that is written here."""
    try:
        fields = batches.fields_of(str(case.lengths))
    except ValueError as error:
        raise RecordError(str(error)) from error
    for name, value in fields.items():
        if getattr(case, name) != value:
            raise RecordError(
                f"{name} is {getattr(case, name)!r}; of the batch {case.lengths:.60} it must be {value!r}."
            )


def case_to_json(case: Case) -> dict[str, Any]:
    """Return the case as a flat dict; `dataclasses.asdict` would copy each value, ten times slower."""
    return {name: getattr(case, name) for name in CASE_FIELDS}


def compatible(first: Case, second: Case, *, but: Sequence[str] = ()) -> bool:
    """Tell whether two cases can be the same: every field that both say is equal, except those named in `but`.

    A case without features never matches one with features.
    """
    for name in CASE_FIELDS:
        one, other = getattr(first, name), getattr(second, name)
        if one != other and (None not in (one, other) or name == "features") and name not in but:
            return False
    return True


def measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    """Return a flat dict, ready for one journal line; `measurement_from_json` is its inverse."""
    record = {name: getattr(measurement, name) for name in MEASUREMENT_SCHEMA}
    record |= case_to_json(measurement.case)
    record["measurement_id"] = measurement.measurement_id
    return record


def measurement_from_json(record: dict[str, Any]) -> Measurement:
    """Return the measurement of a journal line. Raises RecordError if a field is missing, unknown or breaks a rule."""
    if unknown := record.keys() - _LINE_FIELDS:
        raise RecordError(f"Unknown fields {sorted(unknown)}.")
    try:
        case = _case(*map(record.get, CASE_FIELDS))
        values = {name: record[name] for name in MEASUREMENT_SCHEMA if name in record}
        for name in _LISTS:
            if not isinstance(values.get(name) or (), list | tuple):
                raise RecordError(f"{name} is {values[name]!r}; it must be a list.")
            values[name] = tuple(values.get(name) or ())
        return Measurement(case=case, **values)
    except (TypeError, ValueError) as error:
        raise RecordError(str(error)) from error


@lru_cache(maxsize=4096, typed=True)  # a run has hundreds of lines of one case; typed, or 1 would do for true
def _case(*values: Any) -> Case:
    return Case(*values)


def run_to_json(run: Run) -> dict[str, Any]:
    """Return a dict for run.json; `run_from_json` is its inverse."""
    return {name: value for name, value in asdict(run).items() if value is not None or name not in LATER_RUN_FIELDS}


def run_from_json(record: dict[str, Any]) -> Run:
    """Return the run of a run.json, here or in an upload. Raises RecordError that names the field and the rule."""
    if not isinstance(record, dict):
        raise RecordError("It is not an object.")
    for name, value in record.items():
        if name not in RUN_SCHEMA:
            raise RecordError(f"It has the unknown field {name[:80]!r}.")
        if value is None and RUN_SCHEMA[name].nullable:
            continue
        if reason := fault(RUN_SCHEMA[name], value) or time_fault(name, value):
            raise RecordError(f"{name} {reason}.")
    try:
        return Run(**record)
    except (TypeError, AttributeError) as error:
        raise RecordError(str(error)) from error


def _check_signs(m: Measurement) -> None:
    """Raise RecordError if a number is not one that the metric can be: no call takes 0 ms."""
    metric = METRICS.get(m.metric)
    if metric is None or m.value is None:
        return
    for name in ("value", "mean", "p20", "p80", "ci_low", "ci_high"):
        number = getattr(m, name)
        if number is not None and not number > 0 and not metric.holds(number):
            raise RecordError(f"{name} is {number:g}; {m.metric} must be {metric.range}.")
    if m.samples and {*map(type, m.samples)} <= {int, float} and min(m.samples) > 0 and math.isfinite(sum(m.samples)):
        return  # every metric can be a positive number
    for sample in m.samples:
        if not isinstance(sample, int | float) or not math.isfinite(sample) or not metric.holds(sample):
            raise RecordError(f"samples hold {sample!r}; those of {m.metric} must be {metric.range}, and finite.")


def _check_spread(m: Measurement) -> None:
    """Raise RecordError if an interval ends before it begins, or does not hold the median it is of."""
    middle = m.value if m.statistic in (None, "median") else None
    for names, numbers in ((_PERCENTILES, (m.p20, middle, m.p80)), (_INTERVAL, (m.ci_low, middle, m.ci_high))):
        if numbers[0] is not None or numbers[2] is not None:
            known = [(name, number) for name, number in zip(names, numbers, strict=True) if number is not None]
            for (name, number), (beyond, other) in pairwise(known):
                if number > other + ROUNDING * abs(other):
                    raise RecordError(f"{name} is {number:g}, above {beyond}, which is {other:g}.")


def _check(record: Case | Measurement | Run, fields: Sequence[Field]) -> None:
    """Raise RecordError if a field is none of its choices, or below its minimum."""
    for rules in fields:
        name = rules.name
        value = getattr(record, name)
        if value is None:
            continue
        if rules.choices:
            if not rules.pattern or not re.fullmatch(rules.pattern, str(value)):
                _one_of(name, value, rules.choices)
        elif rules.minimum is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < rules.minimum:
                raise RecordError(f"{name} is {value!r}; it must be a whole number of at least {rules.minimum}.")
        elif rules.least is not None and value < rules.least:
            raise RecordError(f"{name} is {value:g}; it must be at least {rules.least:g}.")


def _one_of(name: str, value: str, possible: tuple[str, ...]) -> None:
    if value not in possible:
        raise RecordError(f"{name} {value!r} is not one of {', '.join(possible)}.")
