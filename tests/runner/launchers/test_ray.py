"""Sweeps over two made-up nodes with two made-up GPUs each: spread, lost, cancelled, refused, killed and resumed."""

import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from io import StringIO
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from results.files.journal import RunFolder, run_folders
from results.paths import REPOSITORY
from results.records import Run, Status, run_to_json
from runner import __main__ as command_line
from runner import launch, sweeps
from runner.cells import ordered_cells, without_number
from runner.launch import ClusterChoice
from runner.launchers import cluster as ray_cluster
from runner.launchers import ray as launcher
from runner.launchers.cluster import describe
from runner.launchers.ray import measure
from runner.launchers.share import Share
from runner.machine.kernel_hash import kernel_hash
from runner.progress import Progress
from runner.supervise.job import Cancelled, Job, Refused
from tests.cases import cases
from tests.runner.conftest import HERE, Runner, logs
from tests.runner.fast_worker import SETTINGS_VARIABLE, number_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]
NAMES = ("torch_naive", "triton_fa2")
SWEEP = sweeps.override(sweeps.get("fa2_speedup"), {"seqlen": "128,256", "head_dim": "16,32"})  # 8 cases
WORKER = (sys.executable, str(HERE / "fast_worker.py"))
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
NODE |= {"include_log_monitor": False, "no_monitor": True}  # processes that nothing here needs
KILLS = int(os.environ.get("ATTNBENCH_KILLS", "4"))  # of every kind some
WAIT = ("wait", None)
SPENT = {"checks": 0.25}  # of each case


@pytest.fixture(scope="module")
def pids(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ray") / "pids"


@pytest.fixture(scope="module")
def cluster(pids: Path):
    pytest.importorskip("ray", reason="Ray is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = dict(os.environ)
    settings = {"delay_s": 0.01, "pids": str(pids), "costs": SPENT, "code": kernel_hash()}
    os.environ[SETTINGS_VARIABLE] = json.dumps(settings)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_gpus": 2})
    made.add_node(**NODE, num_gpus=2)
    yield made
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


def job(**changes) -> Job:
    return Job(SWEEP, device="cpu", implementations=NAMES, protocol="quick", **changes)


def measured(cluster, home: Path, *, stop=lambda: False, asked: Job | None = None, **choices) -> list[RunFolder]:
    request = ClusterChoice(address=cluster.address, **choices)
    return measure(asked or job(), home, request, progress=Progress(StringIO()), stop=stop, worker_command=WORKER)


def ids_of_the_plan(run_id: str) -> set[str]:
    cells = ordered_cells(SWEEP.cases(), NAMES, SWEEP.modes, 0)
    return {
        row.measurement_id for cell in cells for row in without_number(run_id, cell, SWEEP.timings, Status.SKIPPED, "")
    }


def check_rows(folder: RunFolder) -> None:
    """Each number of the plan is there once and is what a worker said."""
    rows = folder.read()[0]
    assert sorted(row.measurement_id for row in rows) == sorted(ids_of_the_plan(folder.run_id))
    assert {row.status for row in rows} == {Status.OK}
    assert all(row.value == number_of(row.measurement_id) for row in rows)
    for case in SWEEP.cases():
        assert len({row.card for row in rows if row.case == case}) == 1, "a case is of one card"


def test_a_sweep_is_spread_over_four_cards(cluster, tmp_path: Path, monkeypatch) -> None:
    take = Share.take
    monkeypatch.setattr(Share, "take", lambda share, name: take(share, name) if len(share._cards) == 4 else WAIT)
    begun = time.monotonic()
    (folder,) = measured(cluster, tmp_path)
    check_rows(folder)
    cards = folder.run().cards
    assert len(cards) == 4
    assert {row.card for row in folder.read()[0]} <= set(cards)
    assert all(len(facts["calibration"]) == len(NAMES) * 3 * 2 for facts in cards.values())
    state = folder.read_state()
    assert (folder.condition(), state.done, state.total) == ("finished", 48, 48)
    assert state.costs["checks"] == pytest.approx(SPENT["checks"] * (8 + 3)), "each card measures the calibration case"
    assert 0 < state.costs["wall"] < time.monotonic() - begun, "four cards at once"
    assert state.costs["total"] > 0
    log = folder.log_path.read_text().splitlines()
    assert sorted(line.partition(": ")[0] for line in log if "the fast worker is here" in line) == sorted(cards)


def test_the_whole_sweep_once_on_every_card(cluster, tmp_path: Path) -> None:
    folders = measured(cluster, tmp_path, mode="each", gpus="2", one_per_host=True)
    assert len(folders) == 2
    for folder in folders:
        check_rows(folder)
        assert folder.run().cards is None


@pytest.mark.parametrize(("choices", "sentence"), cases(__file__, "test_what_no_node_can_serve_is_refused_at_once"))
def test_what_no_node_can_serve_is_refused_at_once(cluster, tmp_path: Path, choices, sentence) -> None:
    with pytest.raises(Refused, match=sentence):
        measured(cluster, tmp_path, **choices)
    assert not run_folders(tmp_path)


def test_a_cancelled_sweep_ends_all_its_processes_and_frees_their_gpus(cluster, tmp_path, pids, wait_for) -> None:
    with pytest.raises(Cancelled):
        measured(cluster, tmp_path, gpus="2", stop=lambda: any(x.read()[0] for x in run_folders(tmp_path)))
    assert not alive(pids)
    (folder,) = run_folders(tmp_path)
    assert folder.condition() == "cancelled"
    wait_for(lambda: describe(cluster.address)["free"] == 4, "free GPUs")
    (folder,) = measured(cluster, tmp_path, asked=job(resume=folder.run_id), gpus="2")
    check_rows(folder)


def test_a_card_that_ignores_a_cancel_is_killed_within_five_seconds(monkeypatch, tmp_path: Path) -> None:
    now, killed = [0.0], []  # a clock that moves when somebody sleeps
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.insert(0, now[0] + seconds))
    monkeypatch.setattr(launcher, "time", clock)
    silent = MagicMock()
    silent.wait.side_effect = chain([(["the first process"], [])], repeat(([], [])))  # then no card ends
    waited = silent.wait
    silent.wait = lambda calls, timeout, **_: clock.sleep(timeout) or waited()
    silent.kill.side_effect = lambda actor: killed.append(now[0])
    driver = launcher.Driver(silent, job(), tmp_path, ClusterChoice(), Progress(StringIO()), lambda: now[0] > 1, WORKER)
    with pytest.raises(Cancelled):
        driver.run([None])
    (at,) = killed
    assert 1 < at < 1 + 5


def test_a_card_of_another_commit_is_sent_away_in_words(tmp_path: Path) -> None:
    driver = launcher.Driver(MagicMock(), job(), tmp_path, ClusterChoice(), Progress(StringIO()), lambda: False, WORKER)
    driver._code, task = "ours", launcher.Task(MagicMock(), None, MagicMock())
    driver._admit(0, task, {"run": run_to_json(Run("r", "local", kernel_hash="theirs")), "card": "a", "host": "gpu2"})
    assert task.why == (
        "Card a on gpu2 has kernels theirs, and here they are ours: bring that checkout to the same commit."
    )
    task.actor.stop.remote.assert_called_once_with()
    assert (task.card, task.share.admit.called) == (None, False)


def test_a_node_killed_in_the_middle_loses_and_doubles_nothing(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(**NODE, num_gpus=1)
    killed = threading.Event()

    def stop() -> bool:
        if not killed.is_set() and any(folder.read()[0] for folder in run_folders(tmp_path)):
            cluster.remove_node(node, allow_graceful=False)
            killed.set()
        return False

    (folder,) = measured(cluster, tmp_path, stop=stop)
    assert killed.is_set()
    check_rows(folder)


def _next(runner: Runner, words: Sequence[str], code: int) -> Sequence[str]:
    """Return the command that goes on with the run, or begins it where a kill came before its folder."""
    assert code != command_line.EXIT_ARGUMENTS
    return ["run", "--resume", runner.folder().run_id, *words[-4:]] if run_folders(runner.home) else words


def test_many_kills_of_drivers_supervisors_and_workers_lose_and_double_nothing(cluster, runner, pids, wait_for) -> None:
    runner.use("fast_worker")
    words = ["run", "fa2_speedup", "--set", "seqlen=128,256", "--set", "head_dim=16,32", "--quick", "--device", "cpu"]
    words += ["--implementations", ",".join(NAMES), "--on", "ray", "--address", cluster.address, "--gpus", "2"]
    chance, kills, process = random.Random(7), 0, runner.start(*words)
    while kills < KILLS:
        done = len(runner.lines())
        wait_for(lambda p=process: p.poll() is not None or alive(pids), "a worker")
        if process.poll() is not None:
            if run_folders(runner.home) and runner.folder().condition() == "finished":
                break
            process = runner.start(*_next(runner, words, process.returncode))
            continue
        time.sleep(chance.uniform(0.0, 0.25))
        if kills % 4 == 2:
            process.kill()
            process.communicate()
        elif found := alive(pids):
            worker = chance.choice(found)
            kill(worker if kills % 2 else int(stat_of(worker)[1]))
        kills += 1
        assert len(runner.lines()) >= done
    while process.wait() or runner.folder().condition() != "finished":
        process = runner.start(*_next(runner, words, process.returncode))
    assert kills >= KILLS
    rows = runner.folder().read()[0]
    ids = [row.measurement_id for row in rows]
    assert sorted(ids) == sorted(ids_of_the_plan(runner.folder().run_id))
    lost = [row for row in rows if row.status is not Status.OK]
    assert all("was killed by signal 9" in row.note or "cards were lost" in row.note for row in lost)
    assert all(row.value == number_of(row.measurement_id) for row in rows if row.status is Status.OK)


def test_a_sweep_on_the_cluster_is_followed_and_cancelled_from_the_page(cluster, tmp_path, monkeypatch, wait_for):
    pytest.importorskip("streamlit")  # the other tests need none
    from tests.pages.conftest import looking_at, opened, shown
    from tests.pages.test_run_sweep import LISTING

    monkeypatch.setattr(launch, "listing", lambda device=None: LISTING | {"ray": True})
    settings = json.dumps({"stuck_at": ["torch_naive", "fwd", 640], "code": kernel_hash()})  # so it ends by the cancel
    monkeypatch.setenv("ATTNBENCH_WORKER", shlex.join(["env", f"{SETTINGS_VARIABLE}={settings}", *WORKER]))

    def lost() -> str:
        """Why no number will come: the log of a run that has ended, or the words of a start that was refused."""
        ended = logs(tmp_path, ("failed", "crashed", "finished", "cancelled"))
        return "" if launch._children else ended or " ".join(error.value for error in page.run().error)

    with looking_at(tmp_path, tmp_path / "published"):
        page = opened("run_sweep", device="ray", cluster_address=cluster.address, **cases(__file__, "asked"))
        assert page.button(key="look_at_cluster").label.replace("\\", "").endswith(cluster.address)
        page.session_state["cluster_looked_at"] = cluster.address  # as a press of that button does
        nodes = page.run().dataframe[0].value
        assert nodes[["GPUs", "free"]].to_numpy().tolist() == [[2, 2], [2, 2]]
        page.button(key="start").click().run()
        wait_for(lambda: any(status.done for status in launch.running()), "a number", lost)
        wait_for(lambda: "Now, by card" in shown(page.run()), "cards at work", lost)
        (status,) = launch.runs()
        page.button(key=f"cancel_{status.run_id}").click().run()
        wait_for(lambda: not launch.running(), "the end")
        assert "No sweep is running on this machine." in shown(page.run())
        (status,) = launch.runs()
        assert status.state == "cancelled" and 0 < status.done < status.total
        page = opened("runs", run_id=status.run_id)
        assert "Each card measured whole shapes of the sweep." in shown(page)
        assert page.button(key="look_at_cluster")


def test_without_ray_the_command_says_what_to_install(at_home, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command_line.main(["run", "quick", "--on", "ray"]) == command_line.EXIT_ARGUMENTS
    assert "install it with `pip install ray`" in capsys.readouterr().err


@pytest.mark.parametrize(("stop", "raised"), [(False, Refused), (True, Cancelled)])
def test_a_ray_that_starts_no_process_is_not_waited_for_for_ever(monkeypatch, stop: bool, raised: type) -> None:
    monkeypatch.setattr(launcher, "_FIRST_LIMIT_S", 0.0)
    driver = object.__new__(launcher.Driver)
    driver._ray = MagicMock()
    driver._ray.wait = lambda answers, timeout: ([], answers)
    driver._stop = lambda: stop
    with pytest.raises(raised):
        driver._wait_for_first_process()


def test_rays_processes_find_what_the_driver_finds(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/site")
    paths = ray_cluster.same_files()["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(REPOSITORY), "/somewhere/site"]


@pytest.mark.parametrize(
    ("place", "hosts", "how"),
    [(REPOSITORY, (), []), (Path("/"), (), ["env_vars"]), (REPOSITORY, ("another",), ["working_dir", "excludes"])],
)
def test_only_a_cluster_of_other_hosts_gets_a_copy_of_the_checkout(monkeypatch, place, hosts, how) -> None:
    monkeypatch.chdir(place)
    ray = MagicMock()
    nodes = [{"NodeManagerHostname": host, "Alive": True} for host in (os.uname().nodename, *hosts)]
    ray.nodes.return_value = [*nodes, {"NodeManagerHostname": "gone", "Alive": False}]
    ray_cluster._join(ray, "gpu1:6379", {})
    assert list(ray.init.call_args.kwargs["runtime_env"] or {}) == how
    assert ray.shutdown.call_count == len(hosts), "one connection at a time"


@pytest.mark.parametrize(("address", "mode"), [("127.0.0.1:6379", "token"), ("gpu1:6379", None)])
def test_only_a_cluster_of_this_host_is_shown_the_token_unasked(monkeypatch, tmp_path, address, mode) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a token")
    monkeypatch.setattr(ray_cluster, "installed", MagicMock(side_effect=Refused("here")))
    with pytest.raises(Refused), ray_cluster.connected(address):
        pass
    assert os.environ.get("RAY_AUTH_MODE") == mode


def test_an_address_without_a_cluster_is_refused_in_words(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(Refused, match="There is no Ray cluster at 127.0.0.1:1"):
        measured(SimpleNamespace(address="127.0.0.1:1"), tmp_path)


def alive(pids: Path) -> list[int]:
    """The workers that live."""
    found = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    return [pid for pid in found if stat_of(pid)[0] != "Z"]


def stat_of(pid: int) -> list[str]:
    """State and parent of a process; one that is gone is a zombie without a parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["Z", "0"]


def kill(pid: int) -> None:
    if pid > 1:
        subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
