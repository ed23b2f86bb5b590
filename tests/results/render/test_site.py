"""The static site: its JSON file follows its schema and holds the winners of the pages, within 5 MB for what ships."""

import json
from collections import Counter

import pytest

from results.__main__ import main
from results.checks import DOUBTFUL, IMPOSSIBLE
from results.files.journal import RunFolder
from results.recommend.winners import winners
from results.records import Measurement, Run, Status
from results.render import site
from results.slice import Filters
from tests.builders import COUNTS, latency, small_case

RUN = Run("run-a", "local", created="2026-01-01", gpu_name="A GPU", title="</script><b>A title</b>", device_type="cuda")


def rows() -> list[Measurement]:
    times = {("triton_fa2", 128): 0.5, ("triton_fa2", 256): 1.0, ("gluon_fp8", 128): 0.1}
    times |= {("torch_naive", 128): 1.0, ("torch_naive", 256): Status.OOM}
    return [latency(name, ms, small_case(n), run_id=RUN.run_id, n=None) for (name, n), ms in times.items()]


@pytest.fixture
def folder(home, tmp_path):
    """A written site of a small store."""
    RunFolder.create(home, RUN, rows())
    assert main(["site", str(tmp_path / "out"), "--no-reports"]) == 0
    return tmp_path / "out"


def test_the_json_file_follows_its_schema_and_has_the_winners_of_the_pages(folder, opened):
    data, schema = (json.loads((folder / name).read_text()) for name in ("data.json", "schema.json"))
    assert set(schema["required"]) == set(data) == set(schema["properties"])
    for name in ("cells", "fits", "calls", "findings", "runs"):
        assert all(len(row) == len(data[name]["fields"]) for row in data[name]["rows"])
    cells = [dict(zip(data["cells"]["fields"], row, strict=True)) for row in data["cells"]["rows"]]
    first, second = sorted(cells, key=lambda cell: cell["column"])
    assert (first["winner"], first["times"]["torch_naive"], first["reduced"]) == ("triton_fa2", 1.0, ["gluon_fp8"])
    assert first["standings"] == {"torch_naive": "ahead"}
    assert second["failed"] == {"torch_naive": "oom"}
    chosen = Filters(gpu="A GPU", mask="causal", mode="fwd", timing="kernel", baseline="torch_naive")
    assert winners(opened(), chosen)["winner"].tolist() == [first["winner"], second["winner"]]
    fits = [dict(zip(data["fits"]["fields"], row, strict=True)) for row in data["fits"]["rows"]]
    llama = {fit["step"]: fit for fit in fits if fit["subject"] == "llama3-8b"}
    assert "80 GB" not in llama["train"]["fits"] and "80 GB" in llama["train, recomputed"]["fits"]
    page = (folder / "index.html").read_text()
    assert "triton_fa2" in page and "</script><b>" not in page
    assert "http" not in page.replace("http-equiv", ""), "nothing is loaded from elsewhere"
    assert site._DATA not in page


def test_a_folder_that_cannot_be_made_is_named_before_runs_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("results.__main__.library.with_records", None)
    (tmp_path / "file").touch()
    assert main(["site", str(tmp_path / "file" / "out")]) == 1
    assert "cannot be used: Not a directory" in capsys.readouterr().err


@pytest.mark.slow  # reads and checks every number that ships
def test_the_site_of_what_ships_is_small_and_its_runs_have_few_doubts_and_nothing_impossible(
    tmp_path, shipped, monkeypatch
):
    monkeypatch.setenv("ATTNBENCH_HOME", str(shipped.parent))
    assert main(["site", str(tmp_path / "out")]) == 0
    files = list((tmp_path / "out").iterdir())
    assert sum(file.stat().st_size for file in files) <= 5_000_000
    assert {"index.html", "data.json", "schema.json", "fa2_rtx4060.html"} <= {file.name for file in files}
    findings = json.loads((tmp_path / "out" / "data.json").read_text())["findings"]
    found = [dict(zip(findings["fields"], row, strict=True)) for row in findings["rows"]]
    weights = Counter(each["weight"] for each in found if each["run_id"] not in COUNTS)
    assert weights[IMPOSSIBLE] == 0 and 0 < weights[DOUBTFUL] <= 600
