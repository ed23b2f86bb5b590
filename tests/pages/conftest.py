"""A home with a small run of known numbers, and the app over it without a browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest, local_script_runner

from results.files import journal
from results.files.journal import RunFolder
from results.records import Run, Status
from results.store.database import open_store
from tests.builders import latency, small_case
from tests.cases import HANG_S

ROOT = Path(__file__).parents[2]
GPU = "Test GPU"
# by implementation and seqlen: milliseconds, or why there is none
LATENCIES: dict[str, dict[int, float | Status]] = {
    "torch_naive": {128: 1.0, 256: 4.0, 512: Status.OOM},
    "triton_fa2": {128: 0.5, 256: 0.5, 512: 1.0},
    "torch_sdpa_flash": {128: 0.502, 256: 2.0, 512: Status.OUT_OF_RESOURCES},
}


def run_folder(
    home: Path, run_id: str = "run-a", *, created: str = "2026-01-01T00:00:00", scale: float = 1.0
) -> RunFolder:
    """A run of the latencies above, in modes fwd and bwd (ten times as long), with memory."""
    run = Run(
        run_id=run_id, source="local", created=created, gpu_name=GPU, gpu_memory_mb=1000.0, title=f"Title {run_id}"
    )
    rows = []
    for name, by_seqlen in LATENCIES.items():
        for seqlen, found in by_seqlen.items():
            memory = {"metric": "peak_memory_mb", "timing": None}
            for mode, factor, of in (("fwd", scale, {}), ("bwd", 10 * scale, {}), ("fwd", seqlen, memory)):
                value, spread = found, {"note": "too large"}
                if not isinstance(found, Status):
                    value = found * factor
                    spread = {"statistic": "median", "p20": value, "p80": value, "n": 5}
                rows.append(latency(name, value, small_case(seqlen), run_id=run_id, mode=mode, **of, **spread))
    return RunFolder.create(home, run, rows)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The HTML that a page draws, instead of drawing it."""
    pieces: list[str] = []
    monkeypatch.setattr(st, "html", pieces.append)
    return pieces


@pytest.fixture(scope="session")
def made_home(tmp_path_factory: pytest.TempPathFactory, shipped: Path, kept_findings: Path) -> Path:
    """A home with one run that its database has read; tests get copies."""
    made = tmp_path_factory.mktemp("home")
    shutil.copyfile(shipped, made / shipped.name)
    (made / "findings").symlink_to(kept_findings)
    run_folder(made)
    open_store(made).close()
    return made


@contextmanager
def looking_at(home: Path, published: Path | None = None) -> Iterator[Path]:
    """Have the app in this process look at a home, and nowhere else if `published` names an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBENCH_HOME", str(home))
        patch.chdir(ROOT)
        if published:
            patch.setattr(journal, "PUBLISHED", published)
        st.cache_resource.clear()
        st.cache_data.clear()
        yield home


@pytest.fixture
def home(tmp_path: Path, made_home: Path) -> Iterator[Path]:
    """A home with one run; the app in this process looks there."""
    with looking_at(shutil.copytree(made_home, tmp_path, symlinks=True, dirs_exist_ok=True)) as looked_at:
        yield looked_at


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, made_home: Path) -> Iterator[Path]:
    """A home with one run for all tests of a module, none of which changes it."""
    made = tmp_path_factory.mktemp("home")
    with looking_at(shutil.copytree(made_home, made, symlinks=True, dirs_exist_ok=True)) as looked_at:
        yield looked_at


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a home with one run, where no published run is found."""
    home = tmp_path_factory.mktemp("small")
    run_folder(home)
    with looking_at(home, home / "published"):
        open_store(home).close()
    return home / "store.duckdb"


@pytest.fixture
def unpublished(home: Path, small_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home with one run, where no published run is found."""
    monkeypatch.setattr(journal, "PUBLISHED", home / "published")
    shutil.copyfile(small_store, home / small_store.name)
    return home


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A home without a run, where no published run is found."""
    with looking_at(tmp_path, tmp_path / "published") as looked_at:
        yield looked_at


@pytest.fixture(scope="session", autouse=True)
def _little_besides_the_pages() -> None:
    """Let Streamlit look for components in all packages once, and not ask each millisecond whether a script ended."""
    manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)
    end_of = local_script_runner.require_widgets_deltas

    def wait(runner: local_script_runner.LocalScriptRunner, timeout: float) -> None:
        runner._script_thread.join(timeout)
        end_of(runner, timeout=1)

    local_script_runner.require_widgets_deltas = wait


@pytest.fixture
def app(home: Path) -> AppTest:
    """The app, looking at the test GPU; no page of it has run, for most tests switch to another than the first."""
    return new_app(gpu=GPU)


def new_app(**query: str) -> AppTest:
    """The app at an address; no page of it has run."""
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=HANG_S)
    test.session_state["command"] = True  # a folded command is open
    for name, value in query.items():
        test.query_params[name] = value
    return test


def opened(page: str, **query: str) -> AppTest:
    """A page of the app at an address."""
    return new_app(**query).switch_page(f"pages/{page}.py").run()


def shown(app: AppTest) -> str:
    """Everything the page says in words, without the marks that keep Markdown from reading them."""
    assert not app.exception, [problem.message for problem in app.exception]
    kinds = (app.markdown, app.caption, app.info, app.warning, app.error, app.success)
    return "\n".join(element.value for kind in kinds for element in kind).replace("\\", "")
