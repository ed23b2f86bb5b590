"""The command line: data on stdout, sentences on stderr, exit codes that scripts can rely on."""

import dataclasses
import io
import itertools
import json
import os
import shlex
import subprocess
import sys

import pytest

from results.files.journal import RunFolder, run_folders
from results.records import Run
from results.render.text import duration
from runner import launch, sweeps
from runner.__main__ import main
from runner.progress import Progress
from tests.cases import cases
from tests.runner.conftest import ROOT
from tests.runner.small_sweeps import FEW, TINY


@pytest.fixture
def complaint(at_home, tmp_path, capsys):
    """What a command that cannot start says; it must leave no run behind."""

    def ask(*words: str) -> tuple[int, str]:
        code = main(words)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert run_folders(tmp_path) == []
        return code, captured.err.strip()

    return ask


@pytest.fixture
def say(at_home, capsys):
    """What a command prints on stdout; in this process, which has torch already."""

    def command(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    return command


@pytest.mark.parametrize(("words", "sentence"), cases(__file__, "test_bad_arguments_are_a_sentence_and_exit_code_2"))
def test_bad_arguments_are_a_sentence_and_exit_code_2(complaint, words: tuple[str, ...], sentence: str) -> None:
    code, text = complaint(*words)
    assert code == 2
    assert text.startswith(sentence)


@pytest.mark.slow
def test_what_only_the_worker_knows_is_checked_too(runner) -> None:
    done = runner("run", "quick", "--device", "cuda:99")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("Unknown device 'cuda:99'. Available: ")
    assert run_folders(runner.home) == []


@pytest.mark.parametrize(
    ("change", "sentence"), cases(__file__, "test_a_run_that_cannot_go_on_is_refused_with_a_sentence")
)
def test_a_run_that_cannot_go_on_is_refused_with_a_sentence(at_home, tmp_path, capsys, change, sentence) -> None:
    sweep = sweeps.to_json(sweeps.get("quick"))
    command = "python -m runner run quick --device cpu --quick"
    run = Run("x", "local", command=command, protocol="quick/1", sweep=sweep)
    RunFolder.create(tmp_path, dataclasses.replace(run, **change))
    assert main(("run", "--resume", "x")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(sentence)


@pytest.mark.parametrize("named", cases(__file__, "test_a_run_folder_of_anybody_names_no_program_and_no_address"))
def test_a_run_folder_of_anybody_names_no_program_and_no_address(at_home, tmp_path, monkeypatch, capsys, named) -> None:
    command = shlex.join(("python", "-m", "runner", "run", "quick", "--device", "cpu", "--quick", *named))
    sweep = sweeps.to_json(sweeps.get("quick"))
    against = {"label": "other"}
    run = Run("x", "local", command=command, protocol="quick/1", sweep=sweep, against=against)
    RunFolder.create(tmp_path, run)
    for measure in ("supervise", "find"):
        monkeypatch.setattr(f"runner.__main__.{measure}", lambda *_, **__: pytest.fail("followed"))
    assert main(("run", "--resume", "x")) == 2
    assert f"={named[-1]}. A run folder can come from anybody" in capsys.readouterr().err
    (asked,) = launch.named_by_the_run("x", tmp_path)
    assert asked.endswith(f"={named[-1]}")


@pytest.mark.slow
def test_a_resumed_run_keeps_its_cells_of_what_is_not_installed(runner) -> None:
    words = (*TINY, "--set", "modes=fwd", "--implementations", "flash_attn_3,torch_naive")
    assert runner("run", *words).returncode == 0
    before = runner.folder().read_state().total
    assert runner("run", "--resume", runner.folder().run_id).returncode == 0
    state = runner.folder().read_state()
    assert (state.done, state.total) == (before, before) == (1, 1)


@pytest.mark.parametrize("words", [("run", "quick", "--standard", "--quick"), ("measure",), ()])
def test_words_that_make_no_command_end_with_the_usage(words: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: python -m runner" in capsys.readouterr().err


def test_the_list_as_json_has_devices_implementations_and_sweeps(say) -> None:
    found = json.loads(say("list", "--json", "--device", "cpu"))
    assert found["devices"][-1]["id"] == "cpu" and found["devices"][-1]["busy"] is None
    reasons = {entry["name"]: entry["reason"] for entry in found["implementations"]}
    assert reasons["torch_naive"] is None
    assert reasons["torch_sdpa_cudnn"] == "torch_sdpa_cudnn runs on cuda, not on cpu."
    assert {"quick", "fa2_speedup"} <= {sweep["name"] for sweep in found["sweeps"]}


def test_the_plan_counts_its_cells_and_says_reasons_sources_and_what_the_interpreter_leaves_out(say) -> None:
    words = ("plan", "quick", "--device", "cpu", "--set", "seqlen=64", "--set", "dtype=float32")
    words = (*words, "--implementations", "torch_naive,torch_sdpa_cudnn")
    found = json.loads(say(*words, "--json"))
    assert (found["sweep"], found["device"], found["cell_count"], found["skipped_count"]) == ("quick", "cpu", 6, 3)
    assert found["seconds"] == pytest.approx(sum(cell["seconds"] for cell in found["cells"]))
    assert {cell["seqlen_q"] for cell in found["cells"]} == {64}
    text = say(*words)
    assert "batch 1, heads 1, seqlen 64, head_dim 64, float32, causal" in text
    assert text.count("skipped: torch_sdpa_cudnn runs on cuda, not on cpu.") == 3
    assert "6 cells on cpu, 3 of them skipped; about " in text
    both = say("plan", "gate,gate_warm", "--device", "cpu", "--json").splitlines()
    assert [json.loads(each)["sweep"] for each in both] == ["gate", "gate_warm"]
    words = ("plan", "real_models", "--device", "cpu", "--set", "shape=ESM-2 150M: 1024 residues")
    said = say(*words, "--implementations", "torch_sdpa_auto")
    assert "batch 8, heads 20, seqlen 1024, head_dim 32, bfloat16, as ESM-2 150M: 1024 residues" in said
    assert "source of the shape: https://huggingface.co/facebook/esm2_t30_150M_UR50D/blob/main/config.json" in said
    words = ("plan", "quick", "--device", "cpu", "--set", "dtype=float32", "--set", "modes=fwd")
    text = say(*words, "--set", "seqlen=64,4096", "--implementations", "triton_fa2")
    short, long = (line.split(maxsplit=2)[2] for line in text.splitlines() if line.startswith("  triton_fa2"))
    assert short == "Triton runs in the interpreter on a CPU: checked, not timed."
    assert long.startswith("Triton runs in the interpreter on a CPU, where the check of this case would take about ")


def test_a_reader_that_has_seen_enough_ends_a_command_in_peace(runner) -> None:
    runner.use("fast_worker")
    nobody, end = os.pipe()
    os.close(nobody)
    command = [sys.executable, "-m", "runner", "run", *FEW]  # prints the run's id
    done = subprocess.run(command, cwd=ROOT, env=runner.environment, stdout=end, stderr=subprocess.PIPE, text=True)
    os.close(end)
    assert done.returncode == 0 and "BrokenPipe" not in done.stderr, done.stderr


class Screen(io.StringIO):
    """A stream that remembers."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal


def test_progress_is_a_bar_on_a_terminal_and_elsewhere_lines_of_steps_that_last(monkeypatch) -> None:
    bar, lines = Screen(terminal=True), Screen(terminal=False)
    monkeypatch.setattr("runner.progress.time.monotonic", itertools.count(100.0, 3.0).__next__)
    for screen in (bar, lines):
        progress = Progress(screen)
        progress.show(12, 24, "torch_naive fwd", 30.0)
        for _ in range(4):
            progress.show(13, 24, "triton_fa2 fwd", 29.0)
        progress.show(24, 24, "the end", 0.0)
        progress.finish()
    assert "[############............] 12/24, about 30 s left  torch_naive fwd" in bar.getvalue()
    assert bar.getvalue().count("\n") == 1
    lasting = ["12/24 cells, about 30 s left: torch_naive fwd", "13/24 cells, about 29 s left: triton_fa2 fwd"]
    assert lines.getvalue().splitlines() == [*lasting, "24/24 cells: the end"]


def test_progress_outlives_whoever_watches() -> None:
    class Gone(Screen):
        def write(self, text: str) -> None:
            super().write(text)
            raise BrokenPipeError

    nobody = Gone(terminal=True)
    progress = Progress(nobody)
    progress.show(1, 2, "x", None)
    progress.say("a sentence")
    assert nobody.getvalue().startswith("\r\x1b[K[############............] 1/2, estimating  x")
    assert nobody.getvalue().endswith("xa sentence\n"), "no longer a bar"


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_said_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.slow
def test_the_quick_sweep_is_sampled_quickly_unless_told_otherwise(runner) -> None:
    runner.use("fast_worker")
    for words in ((), ("--standard",)):
        assert runner("run", "quick", *words).returncode == 0
    commands = sorted(folder.run().command for folder in run_folders(runner.home))
    assert commands == ["python -m runner run quick --device cuda:0 " + preset for preset in ("--quick", "--standard")]


def test_a_sustained_run_of_more_than_a_few_cells_is_refused(runner) -> None:
    runner.use("fast_worker")
    done = runner("run", "quick", "--sustained")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("sustained takes 30 s for each cell and these are ")
    assert "--set modes=fwd" in done.stderr
    assert run_folders(runner.home) == []


def test_a_run_says_what_it_cost_and_keeps_it(runner) -> None:
    runner.use("fast_worker", costs={"sampling": 2.0, "checks": 0.5}, peaks={"bfloat16": 700.0}, gbs=4000.0)
    done = runner("run", "quick", "--set", "seqlen=128,512", "--set", "dtype=float16")
    costs = runner.folder().read_state().costs
    assert (costs["sampling"], costs["checks"]) == (4.0, 1.0)  # two cases
    assert costs["total"] > costs["starts"] > 0
    assert "s in all, 4.0 s of it sampling; beyond that " in done.stderr
    assert (runner.folder().run().measured_tflops, runner.folder().run().measured_gbs) == ({"bfloat16": 700.0}, 4000.0)
