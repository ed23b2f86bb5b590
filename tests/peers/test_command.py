"""The command that runs flash-attention's tests, on a made-up checkout with tests that a CPU can run."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.peers.flash_attn import pytest_collection_modifyitems

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest, torch
from flash_attn import flash_attn_func
from flash_attn.flash_attn_interface import USE_TRITON_ROCM, _get_block_size_n
from flash_attn.layers.rotary import PART

X = torch.ones(1, 4, 2, 8)

@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_calls(dropout_p):
    assert flash_attn_func(X, X, X, dropout_p, return_attn_probs=True)[0].shape == X.shape

def test_wrong():
    assert PART == "bert_padding.py"

def test_left_out():
    pytest.skip()

@pytest.mark.parametrize("a", range(300))  # with the others, too many to list
@pytest.mark.parametrize("b", range(300))
@pytest.mark.parametrize("c", range(300))
def test_sample(a, b, c):
    pass
"""


@pytest.mark.slow
def test_the_table_counts_what_became_of_each_function(tmp_path: Path) -> None:
    for name in ("bert_padding.py", "layers/rotary.py", "ops/triton/rotary.py"):
        path = tmp_path / "flash_attn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"PART = {name!r}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(TESTS)
    command = [sys.executable, "-m", "tests.peers.flash_attn", str(tmp_path), "-n", "1", "--sample", "6"]
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST")}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 1, answer.stderr
    assert "| test_calls | 2 | 1 | 1 | 0 | 0 |" in answer.stdout
    assert "| test_wrong | 1 | 0 | 0 | 1 | 0 |" in answer.stdout
    assert "| test_sample | 6 | 6 | 0 | 0 | 0 |" in answer.stdout
    assert "| all | 10 | 7 | 1 | 1 | 1 |" in answer.stdout
    assert "- refused 1: return_attn_probs is refused with dropout_p" in answer.stdout


def test_functions_take_turns() -> None:
    items = [SimpleNamespace(originalname=name) for name in "aaaabbc"]
    pytest_collection_modifyitems(items)
    names = "".join(item.originalname for item in items)
    assert sorted(names[:3]) == list("abc") and sorted(names[3:5]) == list("ab") and names[5:] == "aa"
