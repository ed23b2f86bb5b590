"""Report performance_guide filled from own runs: every table, claim, feature and recommendation."""

from results import capabilities
from results.__main__ import main
from results.files.journal import RunFolder
from results.records import Run
from results.reports import side_by_side
from results.reports.coverage import coverage
from results.reports.layout import Section
from runner.sweeps import SWEEPS
from tests.results.reports.made_up import H200, OF_MODELS, OF_OPS, models, number, ops

# microseconds a token and head-batch, and MiB a token


def row_of(section: Section, *labels: str) -> dict[str, str]:
    row = next(row for row in section.rows if row.labels == labels)
    return dict(zip(section.columns, row.own, strict=True))


def bare() -> list[Section]:
    """Return the report beside a run of one number."""
    run, case = Run("bare", "local", gpu_name=H200), SWEEPS["performance_guide"].cases()[0]
    own = [number(run, case, "triton_fa2", "fwd", "latency_ms", 1.0, "kernel")]
    return side_by_side.sections("performance_guide", side_by_side.published("performance_guide"), [(run, own)])


def test_a_feature_that_nobody_tried_or_declares_is_left_open():
    found = bare()
    section = next(section for section in found if section.title == "Features by version")
    assert row_of(section, "Basic attention") == {"FA1": "", "FA2": "ran: triton_fa2", "FA3": ""}
    assert next(row for row in section.rows if row.labels == ("Sliding window",)).own is None


def test_features_that_were_checked_stand_in_a_table_of_their_own_that_is_none_of_the_reports(monkeypatch):
    of_gpus = {"H100": {"triton_fa2": {"softcap": {"errors": {"float16": 0.5}}, "sinks": {"errors": {"float16": 1.5}}}}}
    of_gpus["H200"] = of_gpus["H100"] | {"gluon_hopper": {"softcap": "gluon_hopper does not support softcaps."}}
    record = {gpu: {"environment": {}, "implementations": found} for gpu, found in of_gpus.items()}
    monkeypatch.setattr(capabilities, "record", lambda: record)
    found = bare()
    section = next(section for section in found if section.title == "Features that the report does not name")
    checked = "checked on H100: triton_fa2; checked on H200: triton_fa2"
    assert [(row.labels, row.own) for row in section.rows] == [(("softcap",), ("no", checked, "no"))]
    assert section.title not in {table.title for table in coverage(found)}


def test_a_table_is_of_one_gpu_that_fills_most_rows_and_a_ratio_of_one_run():
    printed = side_by_side.published("performance_guide")
    standard, flash = ([m for m in models() if m.implementation == name] for name in ("torch_naive", "triton_fa2"))
    other = Run("other", "local", gpu_name=H200)
    found = side_by_side.sections("performance_guide", printed, [(OF_MODELS, standard), (other, flash)])
    with_ratio = [section for section in found if "Speedup" in section.columns]
    ratios = [row.own[section.columns.index("Speedup")] for section in with_ratio for row in section.rows if row.own]
    assert set(ratios) == {"—"}
    h200, h100 = (Run(name, "local", gpu_name=f"NVIDIA {name} 80GB HBM3") for name in ("H200", "H100"))
    found = side_by_side.sections("performance_guide", printed, [(h200, ops()), (h100, ops())])
    runs = {section.title.partition(" ")[0]: section.runs for section in found if " > Forward" in section.title}
    assert runs == {"A100": ("H200",), "H100": ("H100",), "A10G": ("H200",)}
    short = [m for m in ops() if m.case.seqlen_k == 512]
    long = [m for m in ops() if m.case.seqlen_k != 512]
    runs = [(Run("few", "local", gpu_name="Tesla T4"), short), (Run("many", "local", gpu_name="NVIDIA L40S"), long)]
    found = side_by_side.sections("performance_guide", printed, runs)
    (a10g,) = (section for section in found if section.title.startswith("A10G"))
    assert a10g.runs == ("many",)
    assert [row.own is None for row in a10g.rows] == [row.labels == ("512",) for row in a10g.rows]


def test_the_command_takes_several_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTNBENCH_HOME", str(tmp_path))
    RunFolder.create(tmp_path, OF_OPS, ops())
    RunFolder.create(tmp_path, OF_MODELS, models())
    assert main(["report", "performance_guide", "--run", "ops", "--run", "models"]) == 0
    text = capsys.readouterr().out
    assert "the own runs have 79 of 79 rows" in text
    assert "≈ extrapolated from two depths" in text
