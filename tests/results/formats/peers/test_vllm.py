"""vLLM: serve, latency, throughput and the attention benchmark."""

import json

import pytest

from tests.results.formats.peers.peer_files import excerpt, understood


def test_a_rate_that_the_duration_does_not_give_refuses_the_result() -> None:
    data = excerpt("vllm_serve.jsonl").replace(b'"output_throughput": 80.0', b'"output_throughput": 800.0')
    (refused,) = understood("", data).rejected
    assert (refused.line, refused.column) == (1, "output_throughput")


@pytest.mark.parametrize("spec", ["32q", "q0s1k", "q1s1m", "q1s1k__q1s1k", "99999999q1s1k"])
def test_a_spec_that_cannot_be_is_refused(spec: str) -> None:
    entries = json.loads(excerpt("vllm_attention.json"))
    entries[0]["config"]["batch_spec"] = spec
    found = understood("", json.dumps(entries).encode())
    assert [r.line for r in found.rejected] == [1] and len(found.measurements) == 1
