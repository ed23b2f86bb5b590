"""Records what an eager `kernels.attention` runs on compute capability 9.0 in the cases of the headline's models.

`python -m tests.kernels.tools.picks` writes results/published/picks.json. The tables are asked with tensors that have
no memory, so no GPU is needed.
"""

import json
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import routes
from results.records import Case, case_to_json
from results.reports.headline import PICKS, Shipped


def record() -> list[dict[str, Any]]:
    """Return each case with the implementations of calls without and with gradients."""
    with FakeTensorMode(), mock.patch.multiple(routes, _capability=lambda _: routes.HOPPER, _has_gluon=lambda: True):
        return [_picked(case) for case in dict.fromkeys(case for case, _ in Shipped().latencies("models"))]


def _picked(case: Case) -> dict[str, Any]:
    sizes = (case.num_heads, case.seqlen_q), (case.num_kv_heads, case.seqlen_k)
    dtype = getattr(torch, str(case.dtype))
    q, k = (torch.empty(case.batch, *size, case.head_dim, dtype=dtype, device="cuda") for size in sizes)
    names = routes.built_in(q, k, k, bool(case.causal), case.window_size or 0, None)
    said = {name: value for name, value in case_to_json(case).items() if value is not None}
    return {"case": said} | {way: [*found] for way, found in names.items()}


if __name__ == "__main__":
    PICKS.write_text("[\n" + ",\n".join(map(json.dumps, record())) + "\n]\n")
