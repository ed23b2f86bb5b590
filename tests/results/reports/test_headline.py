"""The tables of the documents, from the runs that ship."""

import re
from dataclasses import replace

import pytest

from results import levels
from results.__main__ import main
from results.files.journal import REPOSITORY, folders_in
from results.records import Case, Measurement, Run, Status, attention_case, decode_case
from results.reports import headline
from results.reports.headline import Shipped
from runner.sweeps.model import model_case

SHIPPED = [folder.run() for folder in folders_in(REPOSITORY / "results" / "published")]
CASE = attention_case(batch=1, num_heads=1, seqlen=512, head_dim=64, dtype="bfloat16", causal=True)
DOCUMENT = "Before.\n\n<!-- made by: python -m results headline {name} -->\n{table}<!-- end -->\n\nAfter.\n"


class OneRun(Shipped):
    """Given measurements in place of the shipped ones."""

    def __init__(self, *measurements: Measurement, **facts: float) -> None:
        super().__init__()
        self.measurements, self.facts = list(measurements), facts

    def read(self, run_id: str) -> tuple[Run, list[Measurement]]:
        return Run(run_id, "shipped", **self.facts), self.measurements


def _latency(implementation: str, value: float | None, timing: str = "kernel") -> Measurement:
    status = Status.OOM if value is None else Status.OK
    return Measurement("r", CASE, implementation, "latency_ms", status, mode="fwd", timing=timing, value=value)


def test_a_ratio_is_of_the_fastest_on_either_side_by_device_time() -> None:
    slow = replace(CASE, seqlen_q=1024)
    shipped = OneRun(
        _latency("torch_sdpa_flash", 3.0),
        _latency("torch_sdpa_cudnn", 2.0),
        _latency("torch_sdpa_auto", 0.1, timing="eager"),
        _latency("gluon_hopper", 1.0),
        replace(_latency("torch_sdpa_flash", 3.0), case=slow),  # ours has no time there
        replace(_latency("gluon_hopper", None), case=slow),
    )
    found = shipped.ratios(["r"], "sdpa", "hopper")
    assert [(ratio.case, ratio.mode, ratio.value) for ratio in found] == [(CASE, "fwd", 2.0)]
    shipped.picks = {(CASE, "fwd"): ("torch_sdpa_flash",)}
    assert [ratio.value for ratio in shipped.ratios(["r"], "sdpa", "picked")] == [2.0 / 3.0]


def test_a_cell_of_two_runs_is_wholly_of_the_last() -> None:
    class Twice(OneRun):
        def read(self, run_id: str) -> tuple[Run, list[Measurement]]:
            names = {"first": ("torch_sdpa_flash", "gluon_hopper"), "last": ("gluon_hopper",)}[run_id]
            return Run(run_id, "shipped"), [_latency(name, 1.0) for name in names]

    ((_, times),) = Twice().latencies(["first", "last"]).items()
    assert set(times) == {"gluon_hopper"}


def test_of_several_processes_each_cell_is_the_middle_one() -> None:
    only_a = replace(CASE, seqlen_q=1024)

    class Processes(OneRun):
        def read(self, run_id: str) -> tuple[Run, list[Measurement]]:
            times = {"torch_sdpa_flash": {"a": 1.0, "b": 3.0, "c": 2.0}[run_id], "gluon_hopper": 1.0}
            rows = [_latency(name, ms) for name, ms in times.items()]
            return Run(run_id, "shipped"), rows + [replace(row, case=only_a) for row in rows if run_id == "a"]

    (ratio,) = Processes().middle([["a"], ["b"], ["c"]], "sdpa", "hopper")
    assert ratio.value == 2.0


def test_only_the_tables_of_a_document_are_renewed() -> None:
    document = DOCUMENT.format(name="window", table="| old |\n")
    assert headline.blocks(document) == {"window": "| old |\n"}
    assert headline.updated(document, {"window": "| new |\n"}) == DOCUMENT.format(name="window", table="| new |\n")


def test_the_command_prints_one_table_or_renews_documents(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["headline", "window"]) == 0
    printed = headline.blocks(capsys.readouterr().out)
    assert printed.keys() == {"window"}
    path = tmp_path / "README.md"
    path.write_text(DOCUMENT.format(name="window", table=""))
    assert main(["headline", "--update", str(path)]) == 0
    assert path.read_text() == DOCUMENT.format(name="window", table=printed["window"])


STEP = decode_case(batch=8, num_heads=64, num_kv_heads=8, context=8192, head_dim=128, dtype="bfloat16")
PAGED = replace(STEP, page_size=16)


def _step(case: Case, implementation: str, value: float) -> Measurement:
    return replace(_latency(implementation, value), case=case, mode="decode")


def test_decoding_is_beside_the_fastest_other_by_batch() -> None:
    shipped = OneRun(
        _step(STEP, "triton_split_kv", 0.05),
        _step(STEP, "torch_naive", 0.5),
        _step(STEP, "flashinfer", 0.06),
        _step(replace(STEP, batch=32), "triton_split_kv", 0.2),  # no other there
    )
    lines = headline.by_batch(shipped, "decode").splitlines()
    rate = (8 * 8192 * 8 * 256 * 2 + 8 * 64 * 256 * 2) / 0.05 / 1e9
    assert lines[0] == "| heads, context | batch 8 |"
    assert lines[2] == f"| 64 over 8, 8192 | 1.20×, {rate:.2f} |"
    assert lines[3] == "| geometric mean of 1 | 1.20×, lowest 1.20× |"


def test_a_form_costs_what_its_time_is_over_that_of_the_same_case_without_it() -> None:
    class PagedRun(OneRun):
        def read(self, run_id: str) -> tuple[Run, list[Measurement]]:
            return Run(run_id, "shipped"), self.measurements if run_id == "h200-paged_decode" else []

    shipped = PagedRun(
        _step(STEP, "triton_split_kv", 1.0),
        _step(PAGED, "triton_split_kv", 1.1),
        _step(PAGED, "cudnn_frontend", 1.32),
        _step(replace(PAGED, lengths="ragged"), "triton_split_kv", 9.0),  # of two forms: in no row
    )
    assert headline.decode_forms(shipped).splitlines()[2:] == [
        "| page 16 | 1 | 1.10× (highest 1.10) | 1.20× (lowest 1.20) |"
    ]


def test_generation_is_in_tokens_a_second_and_of_what_a_copy_reaches() -> None:
    step = model_case("llama2-7b", batch=1, seqlen=2048, query_tokens=1, dtype="bfloat16")
    shipped = OneRun(_step(step, "triton_step", 4.0), _step(step, "torch_naive", 8.0), measured_gbs=4000.0)
    share = levels.bytes_moved(step, "decode") / 0.004 / 4e12
    assert headline.generation(shipped).splitlines() == [
        "| model, context | `torch_naive` | `triton_step` |",
        "| --- | --- | --- |",
        f"| Llama-2 7B, 2048 | 125, {share / 2:.0%} | 250, {share:.0%} |",
    ]


# Names that have a digit, and words that compare or tell how a run went.
_NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|```.*?```|fa2_rtx4060|layers_a100|FP8|L2|e4m3|FlashAttention-\d", re.DOTALL)
_OF_RUNS = re.compile(
    r"\d|\b(faster|slower) than|\b(beats?|wins?|loses?|lost|won|fails?|failed|took|takes|half|twice)\b"
    r"|\b(behind|cut off|missing|percent)\b|ahead of (?!it)|as fast|times as|within an?\b|did not|on an? [AHBL]\d"
)


def claims(text: str) -> list[str]:
    """Return the figures and the words about runs of a document outside of what the runs make."""
    prose = headline.updated(text, dict.fromkeys(headline.blocks(text), ""))
    runs = [run.run_id for run in SHIPPED if run.run_id in prose]
    prose = _NAMES.sub("", re.sub(r"<!--.*?-->", "", prose))
    return runs + [prose[max(found.start() - 30, 0) : found.end() + 10] for found in _OF_RUNS.finditer(prose)]


def test_the_tables_page_has_no_figure_or_claim_that_is_written_by_hand() -> None:
    text = headline.DOCUMENT.read_text(encoding="utf-8")
    assert claims(text) == []
    for by_hand in (
        "The run was cut off: contexts of one size are of the day before.",
        "12 heads of head_dim 64 are behind cuDNN in the forward.",
        "Ours is faster than SDPA in most shapes.",
        "As in `h200-training`, the driver is not known.",
        "Peaks are within a tenth.",
    ):
        assert claims(text.replace("## Models", f"{by_hand}\n\n## Models")), by_hand
    for text in (path.read_text(encoding="utf-8") for path in REPOSITORY.glob("*/README.md")):
        assert [run.run_id for run in SHIPPED if f"`{run.run_id}`" in text] == []


def test_the_labels_of_means_hold_for_their_shapes() -> None:
    shipped = Shipped()
    for row in headline.SUMMARY:
        cases = {ratio.case for ratio in shipped.middle(row.processes, row.others, row.ours)}
        cases = {case for case in cases if row.dtype in (None, case.dtype) and (row.windows or not case.window_size)}
        gpus = {shipped.read(run_id)[0].gpu_name for ids in row.processes for run_id in headline.ids_of(ids)}
        facts = {"16k tokens": {case.batch * case.seqlen_q for case in cases} == {16384}}
        facts["hidden 2048"] = {case.num_heads * case.head_dim for case in cases} == {2048}
        facts["one head"] = {case.num_heads for case in cases} == {1}
        facts["window of 1024"] = {case.window_size for case in cases} == {1024}
        facts["32 and 8 heads"] = {(case.num_heads, case.num_kv_heads) for case in cases} == {(32, 8)}
        facts["H100"] = gpus == {"NVIDIA H100 80GB HBM3"}
        said = {words for words in facts if words in row.labels[0]}
        assert all(facts[words] for words in said) and (facts["H100"] or gpus == {"NVIDIA H200"}), row.labels
        assert not re.search(r"\d", re.sub("|".join(["bfloat16", "float32", *said]), "", row.labels[0])), row.labels
