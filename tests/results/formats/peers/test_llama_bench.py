"""llama-bench: CSV, JSON, JSON lines and Markdown."""

import json

import pytest

from tests.results.formats.peers.peer_files import excerpt, understood


def test_json_keeps_the_samples_and_lines_of_json_say_as_much() -> None:
    array = understood("llama_bench.json")
    lines = understood("", b"\n".join(json.dumps(row).encode() for row in json.loads(excerpt("llama_bench.json"))))
    for found in (array, lines):
        rate, time = found.measurements
        assert rate.samples == (6863.1, 7147.55, 7136.37, 7115.79, 7237.21) and rate.n == 5
        assert time.samples[0] == pytest.approx(74.6019)


def test_settings_that_differ_between_rows_stand_in_the_name() -> None:
    data = excerpt("llama_bench.csv").decode().replace('"f16","f16","99"', '"q8_0","f16","99"', 1)
    names = {m.implementation for m in understood("", data.encode()).measurements}
    assert names == {
        "llama.cpp b5163 CUDA flash_attn 0 k q8_0 (llama-bench)",
        "llama.cpp b5163 CUDA flash_attn 0 k f16 (llama-bench)",
    }


def test_depth_lengthens_the_context_and_prompt_with_generation_is_left_out() -> None:
    data = excerpt("llama_bench_vulkan.txt").decode()
    data = data.replace("          tg128 |        150", "tg128 @ d512 |        150", 1).replace(
        "          pp512 |", "pp512+tg128 |", 1
    )
    found = understood("", data.encode())
    assert found.measurements[0].case.seqlen_k == 640
    assert "1 tests of a prompt and a generation together (pg)." in found.left_out


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ('"7285.676949"', '"0.000000"', "avg_ts"),
        ('"7285.676949"', '"728.5"', "avg_ts"),
        ('"512","0","0"', '"-512","0","0"', "n_prompt"),
        ('"512","0","0"', '"0","0","0"', "n_prompt"),
    ],
)
def test_a_test_that_cannot_be_is_refused(old: str, new: str, column: str) -> None:
    found = understood("", excerpt("llama_bench.csv").decode().replace(old, new, 1).encode())
    assert [(r.line, r.column) for r in found.rejected] == [(2, column)]


@pytest.mark.parametrize("end", ["\r", "\x0b", "\u2028"])
def test_every_end_of_a_line_counts_where_a_table_is_looked_for(end: str) -> None:
    text = excerpt("llama_bench_vulkan.txt").decode()
    assert understood("", (end * 50 + text.replace("\n", end)).encode()).measurements
