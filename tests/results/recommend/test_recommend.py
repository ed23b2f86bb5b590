"""Who wins, and the rule that follows, over a home of runs with known numbers and spreads."""

import ast
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.problem import Problem
from results.__main__ import main
from results.recommend import rule, winners
from results.recommend.nearest import distance, nearest
from results.records import Status
from results.slice import Filters
from results.spread import spread
from tests.builders import add_run, latency, small_case

SLICE = Filters(gpu="A GPU", mode="fwd", timing="kernel", baseline="slow")


@pytest.mark.parametrize("device,certain", [("cpu", False), ("cuda", True)])
def test_a_processor_is_certain_only_by_its_samples(home, opened, device, certain):
    noisy = [4.0 * factor for factor in (0.1, 0.2, 0.5, 1.0, 3.0, 8.0, 1.0, 0.3, 6.0)]
    quiet = [1.0 * factor for factor in (0.2, 0.5, 1.0, 1.0, 1.5, 4.0, 1.0, 0.4, 3.0)]
    rows = [
        replace(latency(name, 1.0, small_case()), **spread(samples), round_sizes=(3, 3, 3))
        for name, samples in (("a", quiet), ("b", noisy))
    ]
    add_run(home, "a", *rows, device_type=device)
    won = winners.winners(opened(), SLICE).iloc[0]
    assert won["winner"] == "a"
    assert won["margin"] > 1.5
    assert (won["standing"] == "ahead") is certain


def test_several_cases_of_a_cell_are_decided_together_by_their_geometric_mean(home, opened):
    shapes = [small_case(), small_case(num_heads=8)]
    times = {"a": (1.0, 4.0), "b": (1.4, 2.8)}  # means 2.0 and 1.98
    rows = [latency(n, t, c, within=0.001) for n, ts in times.items() for t, c in zip(ts, shapes, strict=True)]
    add_run(home, "a", *rows)
    won = winners.winners(opened(), SLICE).iloc[0]
    assert (won["winner"], won["cases"]) == ("b", 2)
    assert won["tied"] == ["b", "a"]


def test_the_winner_carries_its_spread_and_its_fewest_samples(home, opened):
    shapes = [small_case(), small_case(num_heads=8)]
    rows = [latency("a", t, c, p20=t / 2, p80=t * 2, n=n) for t, c, n in zip((1.0, 4.0), shapes, (9, 7), strict=True)]
    add_run(home, "a", *rows)
    won = winners.winners(opened(), SLICE).iloc[0]
    assert won[["latency_ms", "p20", "p80", "n"]].tolist() == [2.0, 1.0, 4.0, 7]


def test_failures_and_partial_results_never_win_and_other_precisions_take_no_part(home, opened):
    shapes = [small_case(dtype="float32"), small_case(num_heads=8, dtype="float32")]
    rows = [
        latency(name, value, case)
        for name, value in (("slow", 4.0), ("x_tf32", 0.1), ("x_fp8", 0.1))
        for case in shapes
    ]
    rows += [latency("half", 1.0, shapes[0]), latency("half", Status.OOM, shapes[1])]
    rows += [latency("bad", Status.INCORRECT, case) for case in shapes]
    add_run(home, "a", *rows)
    won = winners.winners(opened(), SLICE).iloc[0]
    assert won["winner"] == "slow"
    assert won["failed"] == ["bad incorrect"]


def test_cannot_run_is_told_from_not_tried_yet(home, opened):
    whole, begun, lost = small_case(128), small_case(256), small_case(512)
    rows = [latency("slow", 3.0, whole), latency("never", Status.UNSUPPORTED, whole)]
    rows += [latency("never", Status.UNSUPPORTED, begun)]
    rows += [latency("slow", Status.OOM, lost), latency("never", Status.OOM, lost)]
    add_run(home, "a", *rows)
    won = winners.winners(opened(), SLICE).set_index("seqlen")
    assert won.loc[[256, 512], "winner"].isna().all()
    assert won["status"].fillna("not tried").to_dict() == {128: "unsupported", 256: "not tried", 512: "oom"}


def test_every_gpu_is_shown_in_the_first_timing_that_it_has(home, opened):
    add_run(home, "a", latency("slow", 2.0, small_case()), latency("fast", 1.0, small_case()))
    add_run(home, "b", latency("slow", 1.0, small_case(), timing=None), gpu_name="B GPU")
    add_run(home, "c", latency("slow", 1.0, small_case(causal=False)), gpu_name="C GPU")
    found = winners.winners_by_gpu(opened(), replace(SLICE, mask="causal"), ("kernel", "as published"))
    assert found.set_index("gpu")["winner"].to_dict() == {"A GPU": "fast", "B GPU": "slow"}


def _measured_grid(home: Path) -> None:
    dice = random.Random(7)
    names = ("slow", "torch_sdpa_flash", "torch_sdpa_cudnn", "triton_fa2")
    for mode in ("fwd", "bwd"):
        cases = [
            small_case(s, head_dim=d, dtype=t)
            for s in (128, 512, 4096)
            for d in (64, 128)
            for t in ("float16", "float32")
        ]
        rows = [latency(name, dice.uniform(1, 9), case, within=0.01, mode=mode) for case in cases for name in names]
        add_run(home, mode, *rows)


def test_the_exported_python_stands_alone_and_says_what_the_map_says(home, opened):
    _measured_grid(home)
    store = opened()
    code = rule.as_python(rule.rule_of(store, replace(SLICE, mode=None)))
    imported = {name.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"math"}
    assert not [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    exported: dict = {}
    exec(compile(code, "rule.py", "exec"), exported)
    compared = 0
    for mode in ("fwd", "bwd"):
        for cell in winners.winners(store, replace(SLICE, mode=mode)).to_dict("records"):
            shape = {"dtype": cell["dtype"], "seqlen": cell["seqlen"], "head_dim": cell["head_dim"], "mode": mode}
            assert exported["implementation"](num_heads=2, **shape) == cell["winner"]
            assert exported["why"](num_heads=2, **shape)[0] == 0
            assert exported["backend"](num_heads=2, **shape) in ("FLASH_ATTENTION", "CUDNN_ATTENTION")
            compared += 1
    assert compared == 24


def test_the_backend_is_the_fastest_of_pytorchs_own_whoever_wins(home, opened):
    rows = [
        latency(name, ms, small_case()) for name, ms in (("slow", 9.0), ("triton_fa2", 1.0), ("torch_sdpa_math", 3.0))
    ]
    add_run(home, "a", *rows, latency("torch_sdpa_flash", 2.0, small_case()))
    (point,) = rule.rule_of(opened(), SLICE).points
    assert (point["implementation"], point["backend"], point["backend_ms"]) == ("triton_fa2", "FLASH_ATTENTION", 2.0)


def test_a_rule_takes_the_nearest_measured_shape_refuses_another_mask_and_is_json(home, opened):
    _measured_grid(home)
    made = rule.rule_of(opened(), SLICE)
    (distance, point), *_ = rule.choose(made, count=3, dtype="float16", seqlen=3000, head_dim=64, num_heads=2)
    assert (point["seqlen"], point["head_dim"]) == (4096, 64)
    assert 0 < distance < 1
    with pytest.raises(LookupError, match="full, fwd. Possible: float16, causal, fwd; float32, causal, fwd"):
        rule.choose(made, dtype="float16", seqlen=128, head_dim=64, causal=False)
    record = json.loads(rule.as_json(made))
    assert [{**point, "ties": tuple(point["ties"])} for point in record["points"]] == list(made.points)
    assert record["runs"] == ["fwd"]


def test_pages_count_distances_as_the_rules_that_programs_obey():
    one = Problem("float16", "causal", 2, 8, 2, 64, 300, 64, 32)
    other = Problem("float16", "full", 1, 8, 8, 80, 700, 48)
    assert distance(one.sizes, other.sizes) == one.distance(other) > 0


def test_what_a_source_left_open_does_not_keep_a_shape_away():
    point = {"dtype": "float16", "mask": "causal", "mode": "fwd", "seqlen": 128, "head_dim": 64}
    point |= {"batch": None, "num_heads": None, "num_kv_heads": None}
    assert nearest([point], dtype="float16", seqlen=128, head_dim=64, batch=8, num_heads=32)[0][0] == 0


def test_the_command_says_a_rule_of_nothing_and_writes_one_of_every_mode(home, capsys):
    add_run(home, "a", latency("slow", Status.OOM, small_case()))
    assert main(["rule"]) == 1
    assert "Nothing has a time on A GPU" in capsys.readouterr().err
    _measured_grid(home)
    assert main(["rule", "--format", "json", "--baseline", "slow"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert {point["mode"] for point in points} == {"fwd", "bwd"}
    for more in (["--install", "--output", "a.json"], ["--export", "a.py", "--format", "python"]):
        assert main(["rule", *more]) == 1 and "omit --install and --export" in capsys.readouterr().err


def test_a_name_from_an_upload_cannot_become_code(home, opened):
    name = 'x""" + exit(7) + r"""\\N{bad} {gpu}'
    add_run(home, "a", latency("slow", 2.0, small_case()), latency('a\'b"""', 1.0, small_case()), gpu_name=name)
    code = rule.as_python(rule.rule_of(opened(), replace(SLICE, gpu=name)))
    tree = ast.parse(code)
    assert not [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "exit"
    ]
    exported: dict = {}
    exec(compile(tree, "rule.py", "exec"), exported)
    assert exported["implementation"]("float16", 128, 64, num_heads=2) == 'a\'b"""'
