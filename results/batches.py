"""Batch specs: batches of requests that differ in length, in the grammar of vLLM's attention benchmark.

A spec joins parts by underscores, and a part is a count, `q` with the query tokens, and `s` with the keys, new ones
included: 2q2k_32q1s4k is two requests of 2048 query tokens and as many keys, and 32 of one query token and 4096 keys.
No count means one request, no `s` as many keys as query tokens, and `k` a factor of 1024. Source: vllm-project/vllm at
0402820, benchmarks/attention_benchmarks/batch_spec.py.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_SIZE = "[0-9]{1,7}k?"
_ONE = f"(?:[0-9]{{1,6}})?q{_SIZE}(?:s{_SIZE})?"
PATTERN = f"{_ONE}(?:_{_ONE})*"
_PART = re.compile(f"(?P<count>[0-9]{{1,6}})?q(?P<tokens>{_SIZE})(?:s(?P<keys>{_SIZE}))?")


def parse(spec: str) -> dict[tuple[int, int], int]:
    """Return the number of requests by query tokens and keys, most query tokens first.

    Raises ValueError, whose message says what is possible.
    """
    found: Counter[tuple[int, int]] = Counter()
    for part in spec.split("_"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"Batch {spec!r} is not like 32q1s8k or 2q2k_32q1s4k.")
        tokens = _number(match["tokens"])
        keys, count = _number(match["keys"] or match["tokens"]), int(match["count"] or 1)
        if not 0 < tokens <= keys or not count:
            raise ValueError(f"Batch {spec!r}: {part} needs a request, a query token, and no fewer keys.")
        found[tokens, keys] += count
    return dict(sorted(found.items(), reverse=True))


def spelled(groups: Mapping[tuple[int, int], int]) -> str:
    """Return the spec of a number of requests by query tokens and keys: `parse` reversed."""
    return "_".join(
        f"{count if count > 1 else ''}q{_size(tokens)}{f's{_size(keys)}' if keys != tokens else ''}"
        for (tokens, keys), count in groups.items()
    )


def fields_of(spec: str) -> dict[str, Any]:
    """Return the fields of a case: the numbers of requests, the largest lengths, and the spec if lengths differ."""
    groups = parse(spec)
    tokens, keys = (max(sizes) for sizes in zip(*groups, strict=True))
    lengths = "uniform" if len(groups) == 1 else spelled(groups)
    return {"batch": sum(groups.values()), "seqlen_q": tokens, "seqlen_k": keys, "lengths": lengths}


def is_spec(lengths: object) -> bool:
    """Return whether the lengths of a case are a batch spec."""
    return isinstance(lengths, str) and "q" in lengths


def _number(text: str) -> int:
    return int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)


def _size(number: int) -> str:
    return str(number) if number % 1024 else f"{number // 1024}k"
