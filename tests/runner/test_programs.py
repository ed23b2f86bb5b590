"""`python -m runner record`: a program's own process, its recording whatever its end, and the ones that ship."""

import functools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from kernels import problem
from results import programs
from results.files.journal import RunFolder
from results.recommend import rule_file
from results.records import Run
from runner import listing, new_shapes, prove, steps, sweeps, tune
from runner.__main__ import EXIT_CANCELLED, main
from runner.locks import device_lock
from runner.supervise.job import Cancelled
from tests.cases import cases
from tests.runner.conftest import ROOT

HEAD = {"format": programs.FORMAT, "version": programs.VERSION, "program": "x"}
PROGRAM = """
import os, pathlib, signal, sys, time
import results  # of the program, next to it
from torch.nn.functional import scaled_dot_product_attention as sdpa
import torch
torch.set_num_threads(1)
x = torch.randn(1, 2, 8, 16)
for _ in range(3):
    sdpa(x, x, x, is_causal=True)
print(results.NAME, sys.argv[1:])
if "killed" in sys.argv:
    calls = pathlib.Path(__file__).with_name("new") / "calls.json"
    for _ in range(1200):  # a minute at most; the calls are written within a second
        if calls.exists() and '"count": 3' in calls.read_text():
            break
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
if "raises" in sys.argv:
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("end", "code"), [("ends", 0), ("raises", 1), ("killed", 1)])
def test_a_program_leaves_its_recording_whatever_its_end(tmp_path: Path, end: str, code: int) -> None:
    (tmp_path / "results.py").write_text("NAME = 'mine'\n")
    script, output = tmp_path / "train.py", tmp_path / "new" / "calls.json"
    script.write_text(PROGRAM)
    words = ["record", "--output", str(output), "--", "python", str(script), end]
    answer = subprocess.run([sys.executable, "-m", "runner", *words], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == code, answer.stderr
    found = programs.load(output)
    assert (found.name, [call.count for call in found.calls]) == (f"train.py {end}", [3])
    assert found.calls[0].case.causal and found.calls[0].mode == "fwd"
    if end != "killed":
        assert f"mine ['{end}']" in answer.stdout
    if code:
        assert "the recording has its calls until then" in answer.stderr
    assert [path.name for path in output.parent.iterdir()] == ["calls.json"]


def test_the_shipped_recordings_are_problems_that_kernels_and_sweeps_know() -> None:
    shipped = programs.shipped()
    assert len(shipped) >= 10
    for program in shipped:
        assert program.source and program.calls
        assert [problem.of_record(call.problem) for call in program.calls]
        assert len(program.tuned) + sum(call.reason is not None for call in program.calls) == len(program.calls)
    assert {call.case.level for program in shipped for call in program.tuned} == {"op"} and sweeps.SWEEPS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *cases(__file__, "test_a_file_that_is_no_recording_is_refused_in_words"),
        (json.dumps(HEAD | {"version": 9}), "has version 9; this attnbench reads version 1."),
        (json.dumps(HEAD), "(KeyError: 'calls')"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_words(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(programs.ProgramError) as refused:
        programs.load(path)
    assert sentence in str(refused.value)


FORM = "triton_fa2[half.dq.16 block_m=64 block_n=64]"
NAMES = ("--implementations", "torch_naive,torch_sdpa_auto,torch_sdpa_math")


def recording(folder: Path, *seqlens: int) -> str:
    """Write a recording of one training call for each length."""
    sizes = {"batch": 1, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 16, "direction": "training"}
    of_length = [{"dtype": "float32", "mask": "causal", "seqlen_q": n, "seqlen_k": n, **sizes} for n in seqlens]
    calls = [{"problem": problem, "count": 1} for problem in of_length]
    calls.append({"problem": of_length[0] | {"features": ["mask"]}, "count": 7})
    path = folder / f"{'-'.join(map(str, seqlens))}.json"
    path.write_text(json.dumps(HEAD | {"calls": calls, "unseen": {"calls of FlexAttention": 2}}))
    return str(path)


@pytest.fixture
def tuner(runner, tmp_path: Path):
    """The command line with a worker that answers at once, and a folder of rules."""
    runner.environment["ATTNBENCH_RULES"] = str(tmp_path / "rules")
    runner.use("fast_worker", delay_s=0.05)
    return runner


def lengths_in(rules: Path) -> set[int]:
    path = rules / "test-gpu.json"
    return {point["problem"]["seqlen_q"] for point in rule_file.read(path)["points"]} if path.exists() else set()


@pytest.mark.slow  # four processes, one of them killed
def test_a_killed_tune_is_resumed_as_a_sweep_and_ends_in_its_rule(tuner, wait_for, tmp_path) -> None:
    names = ("--implementations", f"{NAMES[1]},{FORM}", "--tiles")
    process = tuner.start("tune", "--program", recording(tmp_path, 64, 96, 128), *names)
    wait_for(lambda: len(tuner.lines()) > 2, "some numbers")
    process.kill()
    assert lengths_in(tmp_path / "rules") == set()
    again = tuner("run", "--resume", tuner.folder().run_id)
    assert again.returncode == 0, again.stderr
    assert tuner.folder().run().command.startswith("python -m runner tune --program ")
    found = lengths_in(tmp_path / "rules")
    assert found and found <= {64, 96, 128} and "problems timed eagerly" in again.stderr
    assert " --tiles " in tuner.folder().run().command and FORM in (tmp_path / "rules" / "test-gpu.json").read_text()
    other = tuner("tune", "--program", recording(tmp_path, 256, 512), *NAMES)
    assert "7 calls with mask: no sweep measures these, so today's choice stays." in other.stderr
    assert "Not recorded: 2 calls of FlexAttention." in other.stderr
    assert found < lengths_in(tmp_path / "rules"), "rules of other programs stay"


def test_a_recording_is_measured_as_a_sweep_that_installs_no_rule(tuner, tmp_path) -> None:
    done = tuner("run", recording(tmp_path, 64, 96), *NAMES)
    assert done.returncode == 0 and "7 calls with mask: no sweep measures these" in done.stderr
    assert {case.seqlen_q for case in sweeps.from_json(tuner.folder().run().sweep).cases()} == {64, 96}
    assert lengths_in(tmp_path / "rules") == set()


def test_two_tunes_of_one_device_do_not_run_at_once(tuner, tmp_path) -> None:
    with device_lock(tuner.home, "gpu-test", "the first one"):
        second = tuner("tune", "--program", recording(tmp_path, 64), *NAMES)
    assert second.returncode == 3 and "the first one" in second.stderr
    assert lengths_in(tmp_path / "rules") == set()


@pytest.mark.parametrize(("words", "sentence"), cases(__file__, "test_a_tune_of_nothing_is_refused"))
def test_a_tune_of_nothing_is_refused(capsys, words: tuple[str, ...], sentence: str) -> None:
    assert main(["tune", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_tune_of_two_levels_is_a_run_of_each_within_the_time_of_one(at_home, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(tune, "QUICK_S", 0.0)
    made: list = []

    def supervised(job, place, *, stop, **more):
        assert stop()
        made.append((job.sweep.level, len(job.sweep.cases()), job.command("cpu")))
        RunFolder.create(place, Run(f"r{len(made)}", "local"), [])
        raise Cancelled(f"r{len(made)}")

    monkeypatch.setattr("runner.__main__.supervise", supervised)
    words = f"tune --program {recording(tmp_path, 64)} --sweep decode,real_models --device cpu --quick".split()
    assert main(words) == EXIT_CANCELLED
    assert [level for level, _, _ in made] == ["op", "decode"] and made[0][1] > 140  # with the corners
    assert made[1][2] == "python -m runner tune --sweep decode --device cpu --quick"
    said = capsys.readouterr().err
    assert said.count("0 minutes are over") == said.count("No rule follows") == 2 and "--resume r2" in said
    assert main([*words, "--implementations", "torch_naive"]) == 2 and len(made) == 2
    assert "belongs to one level" in capsys.readouterr().err
    monkeypatch.setattr("runner.__main__.supervise", Mock(side_effect=Cancelled))  # before a worker has started
    assert main(words) == EXIT_CANCELLED and "there are no measurements" in capsys.readouterr().err


@pytest.mark.slow  # a sweep by the real worker
def test_a_tune_on_a_cpu_is_obeyed_by_programs_that_start_afterwards(tuner, tmp_path, monkeypatch) -> None:
    del tuner.environment["ATTNBENCH_WORKER"]
    path = recording(tmp_path, 256)
    done = tuner("tune", "--program", path, "--device", "cpu", "--quick", *NAMES)
    assert done.returncode == 0, done.stderr
    assert ("problems timed eagerly" in done.stderr) != ("No rule follows" in done.stderr)  # on a busy computer
    monkeypatch.setenv("ATTNBENCH_RULES", tuner.environment["ATTNBENCH_RULES"])
    rule = {"format": rule_file.FORMAT, "version": rule_file.VERSION, "gpu": "CPU", "chip": {}, "runs": {}}
    (call,) = programs.load(Path(path)).tuned
    rule_file.install(rule | {"points": [{"problem": call.problem, "implementation": "torch_sdpa_math"}]})
    code = "import torch, kernels; x = torch.randn(1, 2, 256, 16).requires_grad_(); "
    code += "print(kernels.explain(x, x, x, causal=True))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=tuner.environment, capture_output=True, text=True)
    assert "your rule" in told.stdout and "measured at float32 causal" in told.stdout, told.stderr


def test_a_list_asks_to_renew_a_rule_of_other_versions(at_home, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ATTNBENCH_RULES", str(tmp_path))
    rule = {"format": rule_file.FORMAT, "version": rule_file.VERSION, "gpu": "CPU", "chip": {}, "points": []}
    for version, asks in ((torch.__version__, False), ("1.13", True)):
        rule_file.install({**rule, "runs": {"a-run": {"torch": version}}})
        said = listing.old_rule(listing.resolve("cpu"))
        assert bool(said) == asks and (not said or "measured with another torch. Renew it" in said)
    (tmp_path / "cpu.json").write_text((tmp_path / "cpu.json").read_text()[:50])
    assert "cpu.json is broken and not used. Renew it" in listing.old_rule(listing.resolve("cpu"))


@pytest.mark.slow  # compares timings in turns
def test_a_proof_times_both_sides_in_turns_and_adds_up_the_calls(at_home, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ATTNBENCH_RULES", str(tmp_path / "rules"))
    monkeypatch.setattr(prove, "ROUNDS", 2)
    path = recording(tmp_path, 48, 80)
    record = json.loads(Path(path).read_text())
    packed, compiled = (dict(record["calls"][0]["problem"], **more) for more in ({"batch": 2}, {"regime": "captured"}))
    record["calls"] += [{"problem": packed | {"features": ["varlen"]}, "count": 1}, {"problem": compiled, "count": 1}]
    Path(path).write_text(json.dumps(record))
    problems = [call.problem for call in programs.load(Path(path)).tuned]
    rule = {"format": rule_file.FORMAT, "version": rule_file.VERSION, "gpu": "CPU", "chip": {}, "runs": {}}
    points = [{"problem": {"regime": "eager", **each}, "implementation": "torch_naive"} for each in problems]
    rule_file.install({**rule, "points": points})
    assert main(["prove", "--program", path, "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    *calls, compiled = record["calls"]
    assert compiled["before"] == compiled["after"] == "torch_sdpa_auto" and compiled["ratio"] == 1.0
    by_definition = "the definition in PyTorch, sequence by sequence"
    for call, before in zip(calls, ("torch_sdpa_auto", "torch_sdpa_auto", by_definition), strict=True):
        assert (call["before"], call["after"], call["note"]) == (before, "torch_naive", "")
        assert call["low"] < call["ratio"] < call["high"]
    before, after, ratio, low, high = record["total"]
    assert before == pytest.approx(sum(call["before_ms"] for call in record["calls"]))
    assert after == pytest.approx(sum(call["after_ms"] for call in record["calls"])) and low < ratio < high
    assert main(["prove", "--program", path, "--device", "cpu", "--baseline", "torch_naive"]) == 0
    assert "torch_naive" in (told := capsys.readouterr().out) and "the same with and without rules" in told
    assert main(["prove", "--program", path, "--device", "cpu", "--baseline", "mine"]) == 2
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.nn.functional as f; x = f.torch.ones(1, 2, 8, 16); f.scaled_dot_product_attention(x, x, x)"
    )
    assert main(["prove", "--device", "cpu", str(script)]) == 0
    assert "train.py\n  1 x batch 1, heads 2, seqlen 8, head_dim 16" in capsys.readouterr().out


TINY = Path(__file__).with_name("tiny_steps.toml").read_text()


def test_whole_steps_of_a_declared_model_are_timed_with_both_attentions(at_home, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(steps, "SECONDS", 0.0)
    monkeypatch.setattr(steps, "ALLOWED", 0.0)
    file = tmp_path / "models.toml"
    file.write_text(TINY)
    assert main(["prove", "--steps", str(file), "--device", "cpu", "--json"]) == 0
    tiny, sam, gemma, none, gone = map(json.loads, capsys.readouterr().out.splitlines())
    assert 0 < tiny["low"] <= tiny["ratio"] <= tiny["high"] and 0 < tiny["differs"] < 1e-4, tiny
    assert "times as far from float32 as SDPA's" in steps.as_line(steps.StepProof(**tiny))
    assert tiny["sdpa_ms"] > 0 and tiny["ours_ms"] > 0 and (none["note"], none["ratio"]) == (steps.NO_CALL, None)
    assert "1 left to PyTorch" in sam["calls"], "models with classes of attention of their own call PyTorch's function"
    assert (tiny["baseline"], gemma["baseline"]) == ("SDPA", "eager") and gemma["ratio"] > 0 and not gemma["note"]
    assert "no_such_library" in gone["note"] and gone["ratio"] is None
    assert main(["prove", "--steps", str(file), "--device", "cpu", "--only", "tiny,wide"]) == 2
    assert "has no wide" in capsys.readouterr().err
    file.write_text(TINY.replace("training", "trained"))
    assert main(["prove", "--steps", str(file), "--device", "cpu"]) == 2
    assert "unexpected keyword argument 'trained'" in capsys.readouterr().err
    assert main(["prove", "--device", "cpu"]) == main(["prove", "--program", "x", "train.py"]) == 2


class Layer(torch.nn.Module):
    """Breaks the graph, and has other graphs for each number and side."""

    def __init__(self, number: int) -> None:
        """Keep the number; the side is set later."""
        super().__init__()
        self.number, self.side = number, ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with another number added for each layer and side."""
        torch._dynamo.graph_break()
        return x + self.number + len(self.side)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_both_sides_of_a_compiled_step_are_compiled_behind_graph_breaks(monkeypatch) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(module[0].side)
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    module = torch.nn.Sequential(*map(Layer, range(10)))
    for side in steps.SIDES:
        for layer in module:
            layer.side = side
        steps._compiled(module, side)(input=torch.ones(3))
    torch.compiler.reset()
    assert graphs.count(steps.SDPA) == graphs.count(steps.OURS) >= len(module)


def test_each_side_of_a_step_has_a_module_with_the_same_tensors() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[1].weight = module[0].weight
    module.register_buffer("scale", torch.ones(4))
    module.derived = module[0].weight * 2
    modules, said = steps.one_each(module)
    ours = modules[steps.OURS]
    assert modules[steps.SDPA] is module is not ours and ours[0] is not module[0] and not said
    pairs = zip((*module.parameters(), *module.buffers()), (*ours.parameters(), *ours.buffers()), strict=True)
    assert all(a is b for a, b in pairs) and ours[1].weight is ours[0].weight and ours.derived is module.derived
    ours(torch.ones(2, 4)).sum().backward()
    assert all(x.grad is not None for x in module.parameters())
    for spoil in (
        lambda x: setattr(x, "held", threading.Lock()),
        lambda x: setattr(x, "parent", weakref.ref(module)),
        lambda x: x.register_forward_hook(lambda *_: module[1].bias),
    ):
        module[0] = torch.nn.Linear(4, 4)
        spoil(module[0])
        modules, said = steps.one_each(module)
        assert modules[steps.SDPA] is modules[steps.OURS] is module and "take turns at one module" in said, said


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_no_turn_of_a_compiled_step_compiles_for_the_other_side(tmp_path, monkeypatch) -> None:
    def counted(made: dict, *rest: Any) -> Iterator[tuple[float, float]]:
        before = len(graphs)
        yield from pairs(made, *rest)
        told.append(len(graphs) - before)
        found.append([each.args[1] for each in made.values()])

    graphs, told, found, pairs = [], [], [], steps._pairs
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=lambda x, _: graphs.append(x) or x))
    monkeypatch.setattr(steps, "_pairs", counted)
    monkeypatch.setattr(steps, "SECONDS", 0.0)
    (tmp_path / "models.toml").write_text(TINY)
    proof, *_ = steps.prove(steps.load(tmp_path / "models.toml", ["tiny"]), "cpu", compiled=True)
    assert not proof.note and len(graphs) >= 2 and told == [0] and proof.differs < 1e-4
    assert [x.config._attn_implementation for x in found[0]] == ["sdpa", "attnbench"]
    assert all(a is b for a, b in zip(*(x.parameters() for x in found[0]), strict=True))


def test_a_program_is_warmed_and_new_lengths_are_timed(at_home, tmp_path, monkeypatch, capsys) -> None:
    assert main(["warm", "--program", recording(tmp_path, 48, 80), "--device", "cpu"]) == 0
    assert "0 kernels compiled, 0 found in Triton's cache" in (said := capsys.readouterr().out) and "2 calls" in said

    def in_this_process(command, env, **more):
        told.append((env["TRITON_CACHE_DIR"], json.loads(command[-1])))
        return SimpleNamespace(returncode=0, stdout=json.dumps(asdict(new_shapes.measured(*told[-1][1]))))

    told: list = []
    monkeypatch.setattr(new_shapes, "subprocess", SimpleNamespace(run=in_this_process))
    words = ["shapes", "--device", "cpu", "--count", "12", "--longest", "40", "--heads", "4/2", "--head-dim", "8"]
    words += ["--dtype", "float32", "--implementations", "kernels.attention,torch_naive"]
    assert main([*words, "--record", str(tmp_path / "kept.json")]) == 0
    records = json.loads(capsys.readouterr().out)
    (kept,) = json.loads((tmp_path / "kept.json").read_text()).values()
    assert kept["implementations"] == records and kept["environment"]["heads"] == "4/2"
    names = [(each["implementation"], each["cache"], each["compiled"]) for each in records]
    assert names == [(n, c, 0) for n in ("kernels.attention", "torch_naive") for c in ("empty", "filled")]
    (folder, call), (again, _), (other, _), _ = told
    assert folder == again != other and len(set(call[2])) == 12 and max(call[2]) <= 40
