"""The tables of README.md, kernels/DESIGN.md and published/TABLES.md, made from the shipped runs.

In a document each table is between two lines, `<!-- made by: python -m results headline NAME -->` and `<!-- end -->`.
`blocks` reads the tables, `updated` renews them, and tests/test_readme.py compares them with the runs.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from json import loads
from typing import Any

from results import capabilities, levels
from results.checks import DOUBTFUL, IMPOSSIBLE, NOTE, check
from results.compare.between_runs import is_control
from results.compare.compare import ComparedCell, Side, compare
from results.compare.verdicts import Verdict, judge, standard_error
from results.derive import geometric_mean, tflops
from results.files import journal, library
from results.grouping import grouped
from results.levels.decode import forms
from results.levels.model_table import model
from results.levels.real_shapes import FEATURE_DOMAINS, shape_of
from results.paths import toml_of
from results.records import CASE_FIELDS, Case, Measurement, Run, case_to_json
from results.render import certificates
from results.render.markdown import markdown_table
from results.reports import get
from results.reports import names as report_names
from results.reports.coverage import coverage, total
from results.reports.default_runs import default_runs, tried_of_runs
from results.reports.side_by_side import sections, speedups_beside

_READ = toml_of(__file__, "_headline.toml")
NAMES, RUNS = _READ["implementations"], _READ["runs"]
MODES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward and backward"}
_SPLIT_KV = "triton_split_kv"
_SAME_CODE = (("h200-torch_vs_triton", "h200-fa2_speedup"), ("h200-fa_paper-one-card", "h200-fa_paper-two-cards"))
_PLANTED = 0.05  # by which kernels of ours are made slower to see whether a verdict finds it
DOCUMENT = journal.PUBLISHED / "TABLES.md"
PICKS = journal.PUBLISHED / "picks.json"  # what an eager `kernels.attention` runs, by case
_NORMAL_95 = statistics.NormalDist().inv_cdf(0.975)
_BLOCK = re.compile(r"(<!-- made by: python -m results headline (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


RunIds = str | Sequence[str]  # runs, or their name in RUNS


def ids_of(runs: RunIds) -> Sequence[str]:
    """Return the runs of a name, or the runs themselves."""
    return RUNS[runs] if isinstance(runs, str) else runs


@dataclass(frozen=True)
class Ratio:
    """The time of the fastest of other implementations over the time of the fastest of ours, in one case and mode."""

    case: Case
    mode: str
    value: float
    error: float | None = None  # standard error of the logarithm, from samples and rounds


class Shipped:
    """The runs that ship with the repository, each read once."""

    def __init__(self) -> None:
        self.folders = sorted(journal.published_folders(), key=lambda folder: folder.run_id)
        self._read: dict[str, tuple[Run, list[Measurement]]] = {}
        self.used: dict[str, set[Case]] = {}  # cases of the times that were asked for, by run

    def read(self, run_id: str) -> tuple[Run, list[Measurement]]:
        """Return a run and its measurements."""
        if run_id not in self._read:
            self._read[run_id] = library.read(next(f for f in self.folders if f.run_id == run_id))
        return self._read[run_id]

    def latencies(self, run_ids: RunIds) -> dict[tuple[Case, str | None], dict[str, Measurement]]:
        """Return device times by case and mode, then by implementation. All times of a cell come from its last run."""
        found: dict[tuple[Case, str | None], dict[str, Measurement]] = {}
        for run_id in ids_of(run_ids):
            of_run: dict[tuple[Case, str | None], dict[str, Measurement]] = {}
            for m in self.read(run_id)[1]:
                if m.metric == "latency_ms" and m.timing == "kernel" and m.value:
                    of_run.setdefault((m.case, m.mode), {})[m.implementation] = m
            self.used.setdefault(run_id, set()).update(case for case, _ in of_run)
            found |= of_run
        return found

    def ratios(self, run_ids: RunIds, others: str, ours: str) -> list[Ratio]:
        """Return the ratios of all cases and modes in which both sides, named in NAMES, have a time."""
        found = []
        for (case, mode), times in self.latencies(run_ids).items():
            named = NAMES[others], NAMES[ours] if ours in NAMES else self.picks.get((case, mode), ())
            sides = [[times[name] for name in names if name in times] for names in named]
            if all(sides):
                theirs, own = (min(side, key=lambda m: m.value) for side in sides)
                error = standard_error(judge(theirs, own, protocol="standard", paired=theirs.run_id == own.run_id))
                found.append(Ratio(case, str(mode), theirs.value / own.value, error))
        return sorted(found, key=lambda ratio: (ratio.case.head_dim, ratio.case.causal, ratio.case.seqlen_q))

    def middle(self, processes: Sequence[RunIds], others: str, ours: str) -> list[Ratio]:
        """Return the median over processes of each ratio that all of them measured."""
        ratios = (ratio for run_ids in processes for ratio in self.ratios(run_ids, others, ours))
        found = grouped(ratios, lambda ratio: (ratio.case, ratio.mode))
        of_all = (each for each in found.values() if len(each) == len(processes))
        return [sorted(each, key=lambda ratio: ratio.value)[len(each) // 2] for each in of_all]

    @cached_property
    def picks(self) -> dict[tuple[Case, str | None], tuple[str, ...]]:
        """Return what an eager `kernels.attention` runs; two implementations in one call have no time together."""
        found: dict[tuple[Case, str | None], tuple[str, ...]] = {}
        for each in loads(PICKS.read_text(encoding="utf-8")):
            case, training = Case(**each["case"]), tuple(each["training"])
            found |= {(case, "fwd"): tuple(each["forward"]), (case, "bwd"): training[-1:]}
            found[case, "fwd_bwd"] = training if len(training) == 1 else ()
        return found

    @cached_property
    def of_reports(self) -> list[tuple[Run, list[Measurement]]]:
        """Return the runs of the published reports."""
        return [self.read(folder.run_id) for folder in self.folders if folder.run().report]


@dataclass(frozen=True)
class Means:
    """A row of geometric means: the fastest of `others` over the fastest of `ours` in some shapes."""

    labels: tuple[str, ...]
    processes: tuple[RunIds, ...]  # several processes count by the middle ratio
    others: str
    ours: str
    dtype: str | None = None
    shortest: int = 0  # tokens
    subject: str | None = None  # of a case
    windows: bool = True  # SDPA has no fused kernel for sliding windows, so that few shapes carry a mean with them


def _means(name: str) -> tuple[Means, ...]:
    """Return the rows of a table of means."""
    return tuple(Means(**row) for row in _READ["means"][name])


SUMMARY = _means("summary")


def means(shipped: Shipped, corner: Sequence[str], rows: Sequence[Means]) -> str:
    """Return a row of geometric means for each declaration; with three labels also its processes."""
    return markdown_table((*corner, *MODES.values()), [cells(shipped, row, corner[0]) for row in rows])


def cells(shipped: Shipped, row: Means, corner: str = "") -> tuple[str, ...]:
    """Return the cells of a row: its labels with shapes, and with lengths if the corner has them, then its means."""
    ratios = shipped.middle(row.processes, row.others, row.ours)
    kept = [r for r in ratios if row.dtype in (None, r.case.dtype) and r.case.seqlen_q >= row.shortest]
    kept = [r for r in kept if (row.windows or not r.case.window_size) and row.subject in (None, r.case.subject)]
    first, *more = row.labels
    lengths = sorted(r.case.seqlen_q for r in kept)
    span = f", {lengths[0]} to {lengths[-1]}" if "seqlen" in corner else ""
    processes = [str(len(row.processes))] * bool(more)
    return f"{first}{span} ({len({r.case for r in kept})} shapes)", *more, *processes, *_spans(kept)


def feature_means(shipped: Shipped) -> str:
    """Return the means of each feature over its fastest correct rival, from all shipped runs of sweep `features`."""
    ran = [folder.run_id for folder in shipped.folders if folder.run().sweep.get("name") == "features"]
    found = [(shape_of(ratio.case), ratio) for ratio in shipped.ratios(ran, "rivals", "ours")]
    rows = []
    for domain in FEATURE_DOMAINS:
        of_domain = [ratio for shape, ratio in found if shape and shape.domain == domain]
        rows.append((domain, str(len({ratio.case for ratio in of_domain})), *[*_spans(of_domain)][:2]))
    return markdown_table(("feature", "shapes", "forward", "backward"), rows)


def of_report(shipped: Shipped) -> str:
    """Return the speedups that report fa2_rtx4060 prints, each with that of our run."""
    printed = next(rows for run, rows in shipped.of_reports if run.report == "fa2_rtx4060")
    baseline, implementation = get("fa2_rtx4060").implementations.values()
    (run_id,) = RUNS["short_one_head"]
    own = shipped.read(run_id)[1]
    shipped.used[run_id] = {m.case for m in own}
    return speedups_beside(printed, own, baseline=baseline, implementation=implementation).rstrip("\n")


def behind(shipped: Shipped) -> str:
    """Return the cells of single heads in which PyTorch's fastest is faster than ours."""
    found = shipped.ratios("one_head", "pytorch", "ours")
    rows = [(_cell(ratio), str(ratio.case.seqlen_q), _x(ratio.value)) for ratio in found if ratio.value < 1]
    said = f"PyTorch's fastest is ahead of ours in {len(rows)} of {len(found)} cells:\n\n"
    return said + markdown_table(("mode, dtype, head_dim", "seqlen", "ratio"), rows)


def ratios(shipped: Shipped, runs: str, over: Sequence[str], modes: Sequence[str]) -> str:
    """Return the times of several others over that of gluon_hopper, shape by shape."""
    found = [{(r.case, r.mode): r.value for r in shipped.ratios(runs, others, "hopper")} for others in over]
    cells = {
        (f"{MODES[mode]}, {case.head_dim}, {_mask(case)}", case.seqlen_q): " / ".join(
            f"{of_each[case, mode]:.2f}" for of_each in found
        )
        + "×"
        for mode in modes
        for case in (case for case, of_mode in found[0] if of_mode == mode)
    }
    return _pivot("mode, head_dim, mask", cells)


def fp8(shipped: Shipped) -> str:
    """Return TFLOP/s of gluon_fp8 / gluon_hopper, forward without a mask, and the error of gluon_fp8."""
    found = shipped.latencies("fa_paper").items()
    times = {case: ms for (case, mode), ms in found if mode == "fwd" and not case.causal}
    errors = {
        m.case: m.value
        for run_id in RUNS["fa_paper"]
        for m in shipped.read(run_id)[1]
        if (m.metric, m.mode, m.implementation) == ("error_out", "fwd", NAMES["fp8"][0])
    }
    cells: dict[tuple[str, int], str] = {}
    of_row: dict[str, list[float]] = {}
    for case in sorted(times, key=lambda case: (case.head_dim, case.causal)):
        row = f"{case.head_dim}, {_mask(case)}"
        cells[row, case.seqlen_q] = " / ".join(_rate(times[case][name]) for name in (*NAMES["fp8"], *NAMES["hopper"]))
        of_row.setdefault(row, []).append(100 * errors[case])
    spans = {row: f"{min(found):.1f} to {max(found):.1f} %" for row, found in of_row.items()}
    return _pivot("head_dim, mask", cells, last=("error", spans))


def decode_forms(shipped: Shipped) -> str:
    """Return the cost of pages, ragged lengths, query tokens and e4m3 for ours, and the fastest other over ours."""
    ours: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    for run_id in RUNS["decode_forms"]:
        latencies = shipped.latencies([run_id])
        for (case, mode), times in latencies.items():
            found = list(forms(case_to_json(case)))
            if len(found) != 1 or _SPLIT_KV not in times:
                continue
            ((form, plain),) = found
            without = latencies.get((replace(case, **plain), mode), {})
            if _SPLIT_KV in without:
                ours.setdefault(form, []).append(times[_SPLIT_KV].value / without[_SPLIT_KV].value)
            others.setdefault(form, []).extend(_over_ours(times))
    rows = []
    for form, ratios in ours.items():
        theirs = others[form]
        span = f"{geometric_mean(theirs):.2f}× (lowest {min(theirs):.2f})" if theirs else "—"
        rows.append((form, str(len(ratios)), f"{geometric_mean(ratios):.2f}× (highest {max(ratios):.2f})", span))
    return markdown_table(("form", "cells", "ours over ours without it", "fastest other over ours"), rows)


def by_batch(shipped: Shipped, run_ids: RunIds) -> str:
    """Return the fastest other's time over ours, and our TB/s, by heads, context and batch."""
    own = {case: times for (case, _), times in shipped.latencies(run_ids).items() if _SPLIT_KV in times}
    ratios = {case: ratio for case, times in own.items() for ratio in _over_ours(times)}
    cells = {
        (f"{case.num_heads} over {case.num_kv_heads}, {case.seqlen_k}", case.batch): f"{_x(ratios[case])}, "
        f"{_terabytes(own[case][_SPLIT_KV])}"
        for case in sorted(ratios, key=lambda case: (case.num_heads, case.num_kv_heads, case.seqlen_k))
    }
    mean = f"{_x(geometric_mean(ratios.values()))}, lowest {_x(min(ratios.values()))}"
    first, *more = sorted({case.batch for case in ratios})
    row = f"geometric mean of {len(ratios)}"
    cells |= {(row, first): mean, **{(row, batch): "" for batch in more}}
    others = sorted({name for times in own.values() for name in times if name != _SPLIT_KV})
    return _pivot("heads, context", cells, words="batch {}") + f"\n\nThe others are {', '.join(others)}."


def _over_ours(times: dict[str, Measurement]) -> list[float]:
    """Return the time of the fastest other implementation over ours, as a list with at most one number."""
    theirs = [time.value for name, time in times.items() if name != _SPLIT_KV]
    return [min(theirs) / times[_SPLIT_KV].value] if theirs else []


def runs(shipped: Shipped) -> str:
    """Return our own shipped runs: date, code, timings, rounds, duration, time not spent on samples, runs at once."""
    rows = []
    own = [(run, folder.read_state()) for folder in shipped.folders if (run := folder.run()).source == "shipped"]
    spans = [(state.started, state.updated) for _, state in own if state and state.started and state.updated]
    for run, state in own:
        times = [m for m in shipped.read(run.run_id)[1] if m.metric == "latency_ms" and m.value]
        rounds = sorted({len(m.round_sizes) for m in times if m.round_sizes})
        timed = " and ".join(sorted({str(m.timing) for m in times}, reverse=True)), " or ".join(map(str, rounds))
        costs = (state.costs if state else None) or {}
        sampling = costs.get("sampling", 0.0) + costs.get("energy", 0.0)
        beyond = f"{100 * (costs['total'] - sampling) / sampling:.0f} %" if sampling else "—"
        seconds = costs.get("wall") or (state.lasted_s if state else None) if run.cards else costs.get("total")
        cards = f" on {len(run.cards)} cards" if run.cards else ""
        took = f"{seconds:.0f} s{cards}" if seconds else "—"
        begun, ended = (state.started or "", state.updated or "") if state else ("", "")
        at_once = sum(start < ended and begun < end for start, end in spans) - 1 if begun else "—"
        versions = f"{run.torch}, {run.triton}"
        facts = str(run.created)[:10], str(run.git_commit)[:7], versions
        words = facts + tuple(each or "—" for each in timed)
        rows.append((f"`{run.run_id}`", *words, took, beyond, str(at_once)))
    header = ("run", "measured", "commit", "torch, triton", "timing", "rounds", "took", "beyond sampling", "at once")
    bare = ", ".join(f"`{run.run_id}`" for run, _ in own if not run.driver)
    return markdown_table(
        header, rows
    ) + f"\n\nDriver, host, power limit and measured peaks are not known of: {bare}." * bool(bare)


def certified(_: Shipped) -> str:
    """Return the certificates of each device, and what `kernels.batch_invariant()` costs there."""
    parts = []
    for device, entry in capabilities.record(capabilities.CERTIFICATES).items():
        facts = entry["environment"]
        packages = {"torch": facts["torch"], "triton": facts["triton"], **facts.get("packages", {})}
        said = ", ".join(f"{name} {version}" for name, version in packages.items())
        shape = f"causal, seqlen {facts['seqlen']} ({facts['context']} in caches), head_dim {facts['head_dim']}"
        parts.append(f"{device}, {facts['created'][:10]}, {said}, hash of the kernels {facts['kernel_hash']}; {shape}:")
        parts.append(certificates.table(entry["implementations"]))
        parts += [certificates.prices(entry["price"])] if entry.get("price") else []
    return "\n\n".join(parts)


def features(_: Shipped) -> str:
    """Return the implementations that passed the check of each feature, with their GPUs, and the code checked."""
    record = capabilities.record()
    right = capabilities.right()
    rows = []
    for each, words in capabilities.CAPABILITIES.items():
        names = sorted({name for of_gpu in right.values() for name in of_gpu.get(each, ())})
        where = {name: [gpu for gpu, of_gpu in right.items() if name in of_gpu.get(each, ())] for name in names}
        said = [
            f"`{name}`" + (f" ({', '.join(gpus)})" if len(gpus) < len(right) else "") for name, gpus in where.items()
        ]
        rows += [(words, ", ".join(said))] if said else []
    facts = [
        f"- {gpu}: {entry['environment']['created'][:10]}, {', '.join(capabilities.dtypes_checked(entry))}, torch "
        f"{entry['environment']['torch']}, triton {entry['environment']['triton']}, hash of the kernels "
        f"{entry['environment']['kernel_hash']}"
        for gpu, entry in record.items()
    ]
    return "\n".join([markdown_table(("feature", " and ".join(record)), rows), "", *facts])


def findings(shipped: Shipped) -> str:
    """Return the number of findings in each published report."""
    rows = []
    for report in report_names():
        found = check([(run, rows) for run, rows in shipped.of_reports if run.report == report])
        weights = [finding.weight for finding in found]
        counts = (len(found), *map(weights.count, (IMPOSSIBLE, DOUBTFUL, NOTE)))
        rows.append((report, *map(str, counts)))
    return markdown_table(("report", "findings", "impossible", "doubtful", "notes"), rows)


def reports_filled(shipped: Shipped) -> str:
    """Return how many rows and cells of each published report the shipped runs fill."""
    own = [shipped.read(folder.run_id) for folder in shipped.folders if folder.run().source == "shipped"]
    tried, by_id = tried_of_runs(own), {run.run_id: (run, rows) for run, rows in own}
    each = []
    for report in report_names():
        printed = [(run, rows) for run, rows in shipped.of_reports if run.report == report]
        runs = [by_id[run_id] for run_id in default_runs(report, printed, tried)]
        tables = coverage(sections(report, printed, runs))
        each.append(total(tables, f"{report} ({len(tables)} tables)"))
    header = ("report", "rows", "filled by runs", "by formula", "open", "cells", "filled")
    counts = ("rows", "filled", "by_formula", "open", "cells", "filled_cells")
    rows = [(of.title, *(str(getattr(of, count)) for count in counts)) for of in [*each, total(each)]]
    return markdown_table(header, rows)


def generation(shipped: Shipped) -> str:
    """Return tokens/s of one sequence, and the bandwidth of its least traffic as a share of a copy's."""
    steps = {
        case: {name: _tokens(step, shipped.read(run_id)[0].measured_gbs) for name, step in times.items()}
        for run_id in RUNS["generation"]
        for (case, mode), times in shipped.latencies([run_id]).items()
        if mode == "decode"
    }
    names = sorted({name for cells in steps.values() for name in cells})
    rows = [
        (f"{model(case.subject).title}, {case.seqlen_k}", *(steps[case].get(name, "—") for name in names))
        for case in sorted(steps, key=lambda case: (case.subject, case.seqlen_k))
    ]
    return markdown_table(("model, context", *(f"`{name}`" for name in names)), rows)


def _tokens(step: Measurement, copied_gbs: float | None) -> str:
    rate = f"{1e3 * step.case.batch / step.value:.0f}"
    if copied_gbs is None:
        return rate
    moved = levels.bytes_moved(step.case, step.mode)
    return f"{rate}, {1e-6 * moved / step.value / copied_gbs:.0%}"


def same_code(shipped: Shipped) -> str:
    """Return the verdicts on runs of the same code, and on ours made slower, with and without PyTorch as control."""
    rows = []
    for names in _SAME_CODE:
        first, second = (Side(*shipped.read(run_id)) for run_id in names)
        slowed = replace(second, measurements=[_slowed(m) for m in second.measurements])
        for controls, torch in (("PyTorch's kernels", second.run.torch), ("none", "another")):
            found, planted = (
                compare(first, replace(side, run=replace(side.run, torch=torch))).cells for side in (second, slowed)
            )
            for timing in ("kernel", "eager"):
                judged = [c.judgement.verdict for c in found if c.judgement and c.timing == timing]
                ours = [c.judgement.verdict for c in planted if c.judgement and c.timing == timing and _is_ours(c)]
                if judged:
                    different = len(judged) - judged.count(Verdict.SAME) - judged.count(Verdict.UNCLEAR)
                    share = f"{ours.count(Verdict.SLOWER)} of {len(ours)}"
                    code = sorted(
                        {f"{str(side.run.git_commit)[:7]}, {side.run.kernel_hash}" for side in (first, second)}
                    )
                    words = " and ".join(f"`{name}`" for name in names), "; ".join(code), timing, controls
                    rows.append((*words, f"{different} of {len(judged)}", share))
    slower = f"ours {_PLANTED:.0%} slower, found"
    return markdown_table(("runs", "commit, kernels", "timing", "controls", "called different", slower), rows)


def _is_ours(item: Measurement | ComparedCell) -> bool:
    return not is_control(item.implementation)


def _slowed(m: Measurement) -> Measurement:
    """Return the latency of a kernel of ours as it would be if the kernel took longer."""
    if m.metric != "latency_ms" or m.value is None or not _is_ours(m):
        return m
    fields = {name: getattr(m, name) for name in ("value", "mean", "std", "p20", "p80", "ci_low", "ci_high")}
    slower: dict[str, Any] = {name: value and value * (1 + _PLANTED) for name, value in fields.items()}
    return replace(m, samples=tuple(sample * (1 + _PLANTED) for sample in m.samples), **slower)


_NAMED = (behind, fp8, decode_forms, generation, runs, feature_means, features, findings, reports_filled, same_code)
TABLES: Mapping[str, Callable[[Shipped], str]] = {table.__name__: table for table in _NAMED} | {
    "certificates": certified,
    "summary": partial(means, corner=("shapes", "ours", "over", "processes"), rows=SUMMARY),
    "fa2_rtx4060": of_report,
    "one_head": partial(means, corner=("dtype, ratio, seqlen",), rows=_means("one_head")),
    "fa_paper_means": partial(means, corner=("over",), rows=_means("fa_paper_means")),
    "fa_paper": partial(ratios, runs="fa_paper", over=("sdpa", "flash_4"), modes=("fwd", "bwd")),
    "window": partial(ratios, runs="window", over=("flex", "flash_4", "sdpa_auto"), modes=tuple(MODES)),
    "layers": partial(means, corner=("layer",), rows=_means("layers")),
    "decode": partial(by_batch, run_ids="decode"),
    "mla": partial(by_batch, run_ids="mla"),
}


def render(names: Iterable[str] = TABLES) -> str:
    """Return the tables of these names as blocks of a document."""
    shipped, parts = Shipped(), []
    for name in names:
        shipped.used.clear()
        text = TABLES[name](shipped) + ("" if name == "summary" else _source(shipped))
        parts.append(f"<!-- made by: python -m results headline {name} -->\n{text}\n<!-- end -->\n")
    return "\n".join(parts)


def _source(shipped: Shipped) -> str:
    """Return the runs of a table, their GPUs, and what all of their cases have in common."""
    cases = [case for of_run in shipped.used.values() for case in of_run]
    if not cases:
        return ""
    facts = {name: {getattr(case, name) for case in cases} for name in CASE_FIELDS}
    common = replace(cases[0], **{name: None for name, values in facts.items() if len(values) > 1})
    words = [levels.words(common)] if all(case.level == cases[0].level for case in cases) else []
    for product in (("batch", "seqlen_q"), ("num_heads", "head_dim")):
        values = {math.prod(getattr(case, name) or 0 for name in product) for case in cases}
        if len(values) == 1 and not all(getattr(common, name) for name in product):
            words.append(f"{' × '.join(product)} {values.pop()}")
    said = f" All cases: {', '.join(filter(None, words))}." if any(words) else ""
    gpus = " and ".join(sorted({str(shipped.read(run_id)[0].gpu_name) for run_id in shipped.used}))
    return f"\n\nFrom {', '.join(f'`{run_id}`' for run_id in shipped.used)} on {gpus}.{said}"


def blocks(text: str) -> dict[str, str]:
    """Return the tables of a document by name."""
    return {match[2]: match[3] for match in _BLOCK.finditer(text)}


def updated(text: str, tables: dict[str, str]) -> str:
    """Return a document with the given tables replaced."""
    return _BLOCK.sub(lambda match: match[1] + tables.get(match[2], match[3]) + match[4], text)


def _pivot(
    corner: str,
    cells: Mapping[tuple[str, int], str],
    last: tuple[str, Mapping[str, str]] | None = None,
    words: str = "{}",
) -> str:
    """Return a table from cells by row and column: rows in their order, columns sorted, then a `last` column."""
    columns = sorted({column for _, column in cells})
    names = dict.fromkeys(row for row, _ in cells)
    header, by_row = last or ("", {})
    rows = [
        [row, *(cells.get((row, column), "—") for column in columns), *([by_row[row]] if last else [])] for row in names
    ]
    return markdown_table([corner, *map(words.format, columns), *([header] if last else [])], rows)


def _spans(ratios: Sequence[Ratio]) -> Iterator[str]:
    """Yield the geometric mean of each mode with its 95 % interval, the median, the lowest and the highest.

    The errors of a run have a common cause, its machine, so they are averaged and do not cancel.
    """
    for mode in MODES:
        of_mode = [ratio for ratio in ratios if ratio.mode == mode]
        values, errors = [r.value for r in of_mode], [r.error for r in of_mode if r.error is not None]
        mean = geometric_mean(values)
        half = f" ± {_NORMAL_95 * mean * statistics.fmean(errors):.2f}" if errors else ""
        span = f"median {statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f}" if values else ""
        yield f"{mean:.2f}×{half} ({span})" if values else "—"


def _cell(ratio: Ratio) -> str:
    return f"{MODES[ratio.mode]}, {ratio.case.dtype}, {ratio.case.head_dim}"


def _mask(case: Case) -> str:
    return "causal" if case.causal else "full"


def _x(value: float) -> str:
    return f"{value:.2f}×"


def _terabytes(measurement: Measurement) -> str:
    """Return the least traffic of a call over its time, in TB/s."""
    return f"{levels.bytes_moved(measurement.case, measurement.mode) / measurement.value / 1e9:.2f}"


def _rate(measurement: Measurement) -> str:
    rate = tflops(levels.flops(measurement.case, measurement.mode), measurement.value)
    return f"{rate:.0f}{'†' if 'throttled' in measurement.flags else ''}"
