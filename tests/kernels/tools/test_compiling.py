"""Kernels must fit their chips: compiled without a GPU, in processes without the interpreter's variable.

gate.ROWS says what is compiled: of each kernel the largest tile that the cases of kernels.tools.cases reach. Left out,
because they would take an hour of two cores: smaller tiles, most masks and most head_dims outside sm_86 and sm_90. The
command `python -m kernels.tools.check compile` compiles all of it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
PACKAGES = ("triton_fa2", "gluon_hopper", "gluon_fp8", "flash_attn_1", "decode", "features", "generation")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """The facts of compiling_facts.py, found in a process where Triton compiles instead of interpreting."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.tools.compiling_facts", str(tmp_path_factory.mktemp("kernels"))]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_kernel_fits_its_chip_hardly_spills_and_has_no_serialized_product(found, package):
    lines = found["gate"].splitlines()
    (summary,) = (line for line in lines if line.startswith(f"{package}: "))
    variants, bad = map(int, re.findall(r"\d+(?= variants| too large)", summary))
    assert variants > 0
    assert bad == 0, "\n".join(line for line in lines if line.endswith("BAD"))


def test_a_tile_that_is_too_large_is_found(found):
    assert found["shared_bytes"] > 101376
    assert found["fits"] == [True, False]


def test_the_forms_of_a_call_are_listed(found):
    ((decides, *others),) = found["forms"]
    assert decides.startswith("half.forward.64 block_m=64") and len(others) >= 2


def test_explain_names_the_kernels_that_run_on_chips_with_and_without_a_record(found):
    assert found["untrue"] == []


def test_the_record_is_the_result_of_compiling(found):
    assert found["recorded_is_compiled"] == [True] * 4


def test_the_code_for_sm_86_is_that_for_sm_89(found):
    assert found["same_on_86_and_89"]
    sm_86, sm_89 = found["ptx_of_86_and_89"]
    assert sm_86 == sm_89
    assert len(sm_86) > 1000


def test_both_warpgroups_meet_between_what_they_store_and_the_product_that_reads_it(found):
    assert found["dkv"].count("W") > 80
    assert re.findall(r"S+[^SW]*(?=W)", found["dkv"]) == re.findall(r"S+FB+(?=W)", found["dkv"]) != []


def test_all_warps_read_the_logsumexp_before_one_of_them_adds_the_sink_to_it(found):
    assert len(found["sinks"]) == 3
    assert all(re.fullmatch("L+B+S+", steps) for steps in found["sinks"]), found["sinks"]


def test_a_fingerprint_depends_on_the_code_and_not_on_names_and_comments(found):
    plain, renamed, *others = found["fingerprints"]
    assert plain == renamed
    assert len({plain, *others}) == 5
    assert len(set(found["source_keys"])) == 6


def test_a_new_length_needs_a_kernel_only_where_it_needs_another_form(found):
    grouped, one_group = found["new_lengths"]
    assert grouped == {"new_form": [], "known_form": []}
    assert one_group["known_form"] == []


def test_the_cpu_needs_the_interpreter(found):
    assert "set TRITON_INTERPRET=1 before Python starts" in found["on_cpu"]


FORWARD = ["preprocess_kernel", "forward_kernel", "combine_outputs"]
BACKWARD = ["preprocess_kernel", "dq_dkdv_kernel", "combine_gradients"]


def printed(found, scenario: str) -> list[list[str]]:
    """The lines that a scenario of a first call prints, in words."""
    lines = found["first_call"][scenario]
    assert "Traceback" not in lines, lines
    return [line.split() for line in lines.splitlines()]


def test_all_kernels_of_a_forward_and_of_a_backward_are_compiled_at_once_in_a_callers_mode_too(found):
    compiled, launched = printed(found, "forward_and_backward")
    assert compiled == sorted(FORWARD + BACKWARD)
    assert launched == (FORWARD + BACKWARD) * 2
    compiled, launched = printed(found, "in_a_mode_of_the_callers")
    assert launched == FORWARD + BACKWARD


def test_two_threads_that_make_the_same_first_call_compile_once(found):
    compiled, launched = printed(found, "in_two_threads")
    assert compiled == sorted(FORWARD)
    assert sorted(launched) == sorted(FORWARD * 2)


def test_a_kernel_that_does_not_compile_says_why_and_is_compiled_when_it_can_be(found):
    error, compiled, launched = printed(found, "one_that_does_not_compile")
    assert error == ["no", "such", "instruction"]
    assert launched == FORWARD, "the first call launched none of them"
