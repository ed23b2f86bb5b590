"""The rule file that `kernels.choice` reads: who wins, who is certainly beaten, and where it is written."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from results.__main__ import main
from results.files.journal import RunFolder
from results.recommend import rule_file
from results.recommend.rule import RuleError
from results.records import Status
from results.slice import Filters
from tests.builders import add_run, latency, small_case

SLICE = Filters(gpu="A GPU", workload="attention", baseline="slow")
CASE = small_case(num_kv_heads=2)


def rows(times: dict[str, float | Status], *, mode: str = "fwd", timing: str = "eager", case=CASE, within=0.001):
    return [latency(name, ms, case, within=within, mode=mode, timing=timing) for name, ms in times.items()]


def points_of(opened, **changes) -> list[dict]:
    return rule_file.rule_file(opened(), SLICE)["points"]


def test_a_point_names_the_winner_who_is_beaten_and_the_evidence(home, opened) -> None:
    times = {"fast": 1.0, "tied": 1.01, "behind": 1.1, "slow": 9.0, "wrong": Status.INCORRECT, "full": Status.OOM}
    add_run(home, "mine", *rows(times))
    (point,) = points_of(opened)
    assert (point["implementation"], point["beaten"]) == ("fast", ["behind", "slow", "wrong"])
    assert point["problem"] == {
        "operator": "attention", "direction": "forward", "regime": "eager", "dtype": "float16", "mask": "causal",
        "window_size": 0, "features": [], "batch": 1, "num_heads": 2, "num_kv_heads": 2, "seqlen_q": 128,
        "seqlen_k": 128, "head_dim": 64, "head_dim_v": 64,
    }  # fmt: skip
    evidence = point["evidence"]
    assert (evidence["run"], evidence["latency_ms"], evidence["samples"]) == ("mine", 1.0, 3)
    assert (evidence["interval_ms"], evidence["runner_up"]) == ([0.999, 1.001], "tied")
    assert evidence["interval"][0] < evidence["ratio"] == 1.01 < evidence["interval"][1]


@pytest.mark.parametrize("rival, within", [(1.019, 0.0001), (1.05, 0.05), (1.3, 0.0)])
def test_ties_and_times_without_a_spread_make_no_point(home, opened, rival, within) -> None:
    add_run(home, "mine", *rows({"slow": 1.0, "other": rival}, within=within))
    with pytest.raises(RuleError, match="No rule follows"):
        points_of(opened)


def test_modes_and_timings_become_directions_and_regimes(home, opened) -> None:
    kinds = [("fwd", "eager"), ("fwd_bwd", "eager"), ("fwd", "kernel"), ("bwd", "eager")]
    found = [row for mode, timing in kinds for row in rows({"a": 1.0, "slow": 2.0}, mode=mode, timing=timing)]
    add_run(home, "mine", *found, gpu_name="A GPU", torch="2.11", triton="3.6", driver="580")
    made = rule_file.rule_file(opened(), SLICE)
    kinds = {(p["problem"]["direction"], p["problem"]["regime"]) for p in made["points"]}
    assert kinds == {("forward", "eager"), ("training", "eager"), ("forward", "captured")}
    assert {made["runs"]["mine"][name] for name in ("torch", "triton", "driver")} == {"2.11", "3.6", "580"}
    assert rule_file.summary(made) == "rule of A GPU, 2 problems timed eagerly and 1 by device time, from 1 runs."


def test_the_chip_is_that_of_the_run(home, opened) -> None:
    facts = {"gpu_name": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132, "l2_mb": 60.0}
    add_run(home, "mine", *rows({"a": 1.0, "slow": 2.0}), **facts, device_type="cuda")
    made = rule_file.rule_file(opened(), Filters(gpu="NVIDIA H200", workload="attention", baseline="slow"))
    wanted = {"compute_capability": [9, 0], "sms": 132, "shared_memory": 227 << 10, "l2": 60 << 20}
    assert made["chip"] == wanted


def test_an_installed_rule_of_a_cpu_is_obeyed_by_the_kernels(home, tmp_path, monkeypatch, capsys) -> None:
    """From measurements to `kernels.attention`, in another process."""
    case = small_case(num_kv_heads=2, dtype="float32", seqlen=64)
    found = rows({"torch_naive": 1.0, "slow": 2.0, "torch_sdpa_auto": 3.0}, case=case)
    found += rows({"torch_sdpa_auto": 1.0, "slow": 2.0, "torch_naive": 3.0}, case=case, mode="fwd_bwd")
    add_run(home, "mine", *found, device_type="cpu")
    folder = tmp_path / "made" / "rules"
    monkeypatch.setenv("ATTNBENCH_RULES", str(folder))
    asked = ["rule", "--gpu", "A GPU", "--baseline", "slow"]
    for mode in ("fwd", "fwd_bwd"):  # the second one keeps the first
        assert main([*asked, "--mode", mode, "--install"]) == 0
        assert "1 problems timed eagerly" in capsys.readouterr().err
    assert main([*asked, "--export", str(tmp_path / "copy.json")]) == 0
    assert (tmp_path / "copy.json").read_bytes() == (folder / "cpu.json").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["cpu.json", "cpu.lock"]
    code = "import kernels, torch; q = torch.ones(1, 2, 64, 64); print(kernels.explain(q, q, q, causal=True))\n"
    code += "q.requires_grad_(); print(kernels.explain(q, q, q, causal=True))"
    root = Path(__file__).parents[3]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    forward, training = answer.stdout.splitlines()
    assert forward.startswith("torch_naive for forward: your rule") and "run mine; next slow" in forward
    assert training.startswith("torch_sdpa_auto for training: built-in choice, which is not beaten")


@pytest.mark.parametrize("gpus, said", [("A GPU\nA GPU", "rule of A GPU"), ("A GPU\nB", "and B, so"), ("", "no GPU")])
def test_install_without_a_card_takes_this_machines_gpu(home, tmp_path, monkeypatch, capsys, gpus, said) -> None:
    add_run(home, "mine", *rows({"a": 1.0, "slow": 2.0}))
    add_run(home, "longer", *rows({"a": 1.0, "b": 1.5, "slow": 2.0}), gpu_name="Another GPU")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{gpus}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    for name in ("PATH", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("ATTNBENCH_RULES")
    failed = main(["rule", "--install"])
    assert said in capsys.readouterr().err
    # `kernels.choice` looks there, wherever $ATTNBENCH_HOME has the results
    written = [path.name for path in (tmp_path / ".config/attnbench/rules").glob("*.json")]
    assert (failed, written) == ((0, ["a-gpu.json"]) if "rule of" in said else (1, []))


def test_a_rule_without_eager_times_says_what_it_needs(home, monkeypatch, tmp_path, capsys) -> None:
    add_run(home, "mine", *rows({"a": 1.0, "slow": 2.0}, timing="kernel"))
    assert main(["rule", "--gpu", "A GPU", "--export", str(tmp_path / "rule.json")]) == 0
    assert "--timing eager" in capsys.readouterr().err
    assert json.loads((tmp_path / "rule.json").read_text())["points"][0]["problem"]["regime"] == "captured"


def test_a_run_alone_makes_the_rule_that_the_store_makes_of_it(home, opened) -> None:
    add_run(home, "mine", *rows({"fast": 1.0, "tied": 1.01, "slow": 9.0}), gpu_name="A GPU", torch="2.11")
    folder = RunFolder.open(home, "mine")
    alone = rule_file.rule_of_run(folder.run(), folder.read()[0])
    stored = rule_file.rule_file(opened(), SLICE)
    assert [alone[name] for name in ("points", "chip", "gpu")] == [stored[name] for name in ("points", "chip", "gpu")]
    assert alone["runs"]["mine"]["torch"] == "2.11"
    with pytest.raises(RuleError, match="No rule follows from run mine"):
        rule_file.rule_of_run(folder.run(), [])


def test_rules_that_are_installed_at_once_are_all_there_and_a_broken_one_is_replaced(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ATTNBENCH_RULES", str(tmp_path))
    (tmp_path / "a-gpu.json").write_text('{"format": "attnbench rule", "version": 1, "gpu": "A GP')

    def install(seqlen: int) -> None:
        problem, run = {"mask": "causal", "regime": "eager", "seqlen_q": seqlen}, f"run-{seqlen}"
        points = [{"problem": problem, "implementation": "x", "evidence": {"run": run}}]
        head = {"format": rule_file.FORMAT, "version": rule_file.VERSION, "gpu": "A GPU", "chip": {}}
        rule_file.install({**head, "runs": {run: {"torch": "2.11"}}, "points": points})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(install, [*range(8), 7]))
    found = rule_file.read(tmp_path / "a-gpu.json")
    assert sorted(point["problem"]["seqlen_q"] for point in found["points"]) == list(range(8))
    assert sorted(found["runs"]) == [f"run-{seqlen}" for seqlen in range(8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-gpu.json", "a-gpu.lock"]
