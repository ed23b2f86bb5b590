"""Who may import what, read from the imports themselves."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[1]
OURS = {"app", "kernels", "pages", "results", "runner", "tests"}
STDLIB = set(sys.stdlib_module_names)

# what every room of results may stand on
_GROUND = {
    f"results.{name}"
    for name in (
        *("records", "schema", "batches", "metrics", "implementations", "capabilities", "paths", "gpus", "counting"),
        *("slice", "levels", "derive", "spread"),
    )
}
# path prefix -> (packages or modules of ours, third party); the longest matching prefix decides
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "kernels": ({"kernels"}, {"torch", "triton"}),
    "kernels/examples": ({"kernels", "results", "runner"}, {"torch", "transformers"}),  # not part of the package
    "kernels/attention/flash_attn_4.py": ({"kernels"}, {"torch", "flash_attn"}),
    "kernels/attention/flash_attn_2.py": ({"kernels"}, {"torch", "flash_attn"}),
    "kernels/attention/flash_attn_3.py": ({"kernels"}, {"torch", "flash_attn_interface"}),
    "kernels/models.py": ({"kernels"}, {"torch", "transformers"}),
    "kernels/transformers.py": ({"kernels"}, {"torch", "transformers"}),
    "kernels/tools/cases.py": ({"kernels"}, {"torch", "transformers"}),
    "kernels/tools/drop_in_models.py": ({"kernels"}, {"torch", "transformers"}),
    "kernels/attention/xformers.py": ({"kernels"}, {"torch", "xformers"}),
    "kernels/decode/cudnn_frontend.py": ({"kernels"}, {"torch", "cudnn"}),
    "kernels/decode/flash_attn_2.py": ({"kernels"}, {"torch", "flash_attn"}),
    "kernels/decode/flash_attn_3.py": ({"kernels"}, {"torch", "flash_attn_interface"}),
    "kernels/decode/flash_attn_4.py": ({"kernels"}, {"torch", "flash_attn"}),
    "kernels/decode/flash_mla.py": ({"kernels"}, {"torch", "flash_mla"}),
    "kernels/decode/flashinfer.py": ({"kernels"}, {"torch", "flashinfer"}),
    "kernels/decode/xformers.py": ({"kernels"}, {"torch", "xformers"}),
    "results": ({"results"}, {"duckdb", "pandas"}),
    "results/batches.py": (set(), set()),
    "results/features.py": (set(), set()),
    "results/records.py": (
        {"results.batches", "results.features", "results.metrics", "results.schema"},
        set(),
    ),
    "results/schema.py": (set(), set()),
    "results/metrics.py": (set(), set()),
    "results/paths.py": (set(), set()),
    "results/spread.py": (set(), set()),
    "results/levels": ({"results.batches", "results.features", "results.levels", "results.records"}, set()),
    "results/gpus.py": (set(), set()),
    "results/counting.py": (set(), set()),
    "results/derive.py": ({"results.gpus", "results.levels"}, set()),
    "results/implementations.py": ({"results.levels"}, set()),
    "results/capabilities.py": ({"results.features", "results.paths"}, set()),
    "results/store": (_GROUND | {"results.files", "results.store"}, {"duckdb", "pandas"}),
    "results/query": (_GROUND | {"results.store", "results.compare", "results.query"}, {"pandas"}),
    "results/compare": (_GROUND | {"results.compare"}, {"pandas"}),
    "results/checks": (_GROUND | {"results.compare", "results.checks"}, set()),
    "results/formats": (
        _GROUND | {"results.files", "results.formats", "results.render.markdown", "results.render.text"},
        set(),
    ),
    "results/formats/workbook.py": ({"results.formats"}, {"openpyxl"}),
    "results/recommend": (
        _GROUND
        | {
            f"results.{name}"
            for name in ("store", "query", "compare", "checks", "recommend", "features", "files.durable")
        },
        {"pandas"},
    ),
    "results/files/durable.py": (set(), set()),
    "results/files/columns.py": ({"results.files.durable", "results.records"}, {"duckdb"}),
    "results/files/journal.py": (
        {"results.files.columns", "results.files.durable", "results.paths", "results.records"},
        set(),
    ),
    "runner": ({"kernels", "results", "runner"}, {"torch", "pynvml"}),
    "runner/measure/triton_hooks.py": (set(), {"triton"}),
    "runner/sweeps": (
        {"results.batches", "results.features", "results.levels", "results.records", "runner.sweeps"},
        set(),
    ),
    "runner/launchers/cluster.py": ({"results.paths", "runner.supervise.job"}, {"ray"}),
    "runner/launchers/ray.py": ({"results", "runner"}, {"ray"}),
    "runner/launch.py": (
        {
            "results.levels",
            "results.paths",
            "results.records",
            "results.files.journal",
            "runner.protocol",
            "runner.sweeps",
        },
        set(),
    ),
    "runner/supervise/supervisor.py": ({"results", "runner"}, set()),
    "pages": (
        {"pages", "results", "runner.sweeps", "runner.launch"},
        {"streamlit", "plotly", "pandas"},
    ),
    "app.py": ({"pages"}, {"streamlit"}),
}


def _sources() -> list[Path]:
    tops = ("kernels", "results", "runner", "pages")
    return [ROOT / "app.py", *(path for top in tops for path in sorted((ROOT / top).rglob("*.py")))]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.level:
                assert path.is_relative_to(ROOT / "kernels"), (
                    f"{path.relative_to(ROOT)}:{node.lineno} imports relatively"
                )
                module = importlib.util.resolve_name(module, ".".join(path.relative_to(ROOT).parent.parts))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def _within(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_direction(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    prefix = max((p for p in ALLOWED if relative == p or relative.startswith(f"{p}/")), key=len)
    ours, third_party = ALLOWED[prefix]
    for name in _imports(path):
        top = name.split(".")[0]
        allowed = ours if top in OURS else third_party | STDLIB
        assert _within(name, allowed), f"{relative} imports {name}; {prefix} may import {sorted(ours | third_party)}"


def test_the_app_never_imports_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "pages" / "ui").rglob("*.py"))
        if path.stem != "__init__"
    ]
    modules += ["results.store.database", "results.query.pages", "runner.sweeps", "runner.launch"]
    code = f"import {', '.join(modules)}, sys; print(sorted({{'torch', 'triton', 'kernels'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


def test_the_longest_test_files_are_where_their_order_says() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
