"""What compiling without a GPU gives, as JSON: `python -m tests.kernels.tools.compiling_facts FOLDER`.

It runs in a separate process, in which Triton compiles instead of interpreting; one process for all facts, because
importing takes longer than any of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import kernels
from kernels import forms, plans, registry, routes
from kernels.attention.gluon_hopper.sinks import WithSinks
from kernels.features import Features
from kernels.problem import Problem
from kernels.tools import check
from kernels.tools.capture import launches_on
from kernels.tools.cases import OpCase
from kernels.tools.compile import RecordedLaunch, compile_offline, fingerprint, fits, source_key
from tests.kernels.attention.triton_fa2 import first_call
from tests.kernels.tools import gate

KERNELS = """
import triton, triton.language as tl

@triton.jit
def plain(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N)

@triton.jit
def renamed(y_ptr, N: tl.constexpr):  # a comment
    tl.store(y_ptr, N)

@triton.jit
def other(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N + 2)
"""


def main(folder: Path) -> dict[str, Any]:
    """Return the facts that test_compiling.py asserts; `folder` gets a module of kernels."""
    printed = first_call.printed(folder)  # before anything is compiled
    large = _first("forward", 90, OpCase("triton_fa2", "bfloat16", 256, "causal", "large"))
    needs = large.resources()
    small = [_first("forward", chip, OpCase("triton_fa2", "bfloat16", 64, "causal")) for chip in (86, 89)]
    return {
        "gate": gated(),
        "fits": [fits(chip, needs) for chip in (90, 86)],
        "shared_bytes": needs.shared_bytes,
        "recorded_is_compiled": recorded_is_compiled(),
        "same_on_86_and_89": small[0].launch.identity() == small[1].launch.identity(),
        "ptx_of_86_and_89": [ptx_without_target(v.chip, v.launch) for v in small],
        "forms": forms_of_a_call(),
        "untrue": [untrue for chip in (80, 90, 100) for untrue in untrue_on(chip)],
        "dkv": steps_of(_first("dkv", 90, OpCase("gluon_hopper", "bfloat16", 256, "causal")).launch, OF_WARPGROUPS),
        "sinks": [steps_of(x, r"(l)d[.]global|(b)ar[.]sync|(s)t[.]global") for x in sinks_in_place()],
        "new_lengths": [kernels_of_lengths(*sizes) for sizes in ((32, 8, 128), (8, 8, 64))],
        "first_call": printed,
        "on_cpu": refusal_on_the_cpu(),
        **hashes(folder),
    }


def gated() -> str:
    """Return what the gate prints for all packages."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        gate.main([])
    return said.getvalue()


def refusal_on_the_cpu() -> str:
    """Return what triton_fa2 says to tensors of a CPU where nothing is interpreted."""
    x = torch.zeros(1, 1, 8, 16)
    try:
        return str(registry.get("triton_fa2").attention(x, x, x))
    except registry.UnsupportedCase as error:
        return str(error)


def forms_of_a_call() -> list[list[str]]:
    """Return the forms that decide a forward on sm_86, each with those that could take its place."""
    found = forms.deciding(Problem("bfloat16", "full", 1, 8, 8, 1000, 1000, 64, 64), 86)
    return [[form.text, *(other.text for other in others)] for form, others in found.items()]


def untrue_on(chip: int) -> list[str]:
    """Return calls on a chip whose kernels, or whose copies of pages, are not those that `kernels.explain` names."""
    asked = ({}, {"return_lse": True}, {"softcap": 3.0}, {"window_size": (64, 32)}, {"deterministic": True})
    given = ({}, {"return_lse": True}, {"copy_pages": False}, {"max_seqlen_q": 8}, {"max_seqlen_q": 8192})
    found, calls = [], []
    with launches_on(chip) as launches:
        bf16: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
        starts = torch.empty(9, dtype=torch.int32, device="cuda")
        packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 2048, "max_seqlen_k": 2048}
        for seqlen, head_dim in ((2048, 128), (200, 64), (2048, 256)):
            q, k = (torch.empty(4, heads, seqlen, head_dim, **bf16) for heads in (16, 4))
            calls += [(kernels.attention, (q, k, k), {"causal": True, **each}) for each in asked]
        rows, query = torch.empty(16384, 16, 128, **bf16), torch.empty(8, 16, 1, 128, **bf16)
        for page in (16, 128):
            pages = torch.empty(16384 // page, page, 4, 128, **bf16)
            packed["block_table"] = table = torch.empty(8, 2048 // page, dtype=torch.int32, device="cuda")
            calls += [(kernels.attention_varlen, (rows, pages, pages), {"causal": True, **packed, **x}) for x in given]
            calls.append((kernels.decode, (query, pages, pages), {"page_table": table, "cache_seqlens": starts[1:]}))
        for function, tensors, options in calls:
            launches.clear()
            plans.forget()  # what has run is launched unrecorded
            function(*tensors, **options)
            said = kernels.explain(*tensors, **options)
            ran = {part for x in launches for part in x.kernel.fn.__module__.split(".")[2:3]}
            copies = any(x.kernel.__name__ == "copy_kernel" for x in launches)
            if not all(name in said for name in (*ran, "forms of")) or copies != ("a copy of the pages" in said):
                found.append(f"{chip}: {sorted(ran)}, {copies}: {said}")
    return found


def kernels_of_lengths(heads: int, kv_heads: int, head_dim: int) -> dict[str, list[int]]:
    """Return by new_form and known_form the lengths after ten random ones that need a kernel which those did not.

    Counted are the keys by which Triton compiles on sm_90. A form is a kernel with its constants and options.
    """
    keys, known = set(), set()
    late: dict[str, list[int]] = {"new_form": [], "known_form": []}
    for number, length in enumerate(random.Random(0).sample(range(512, 4097), 30)):
        with launches_on(90) as launches:
            sizes = ((heads, length), (kv_heads, length), (kv_heads, length), (heads, length))
            q, k, v, dout = (torch.empty(1, *size, head_dim, device="cuda", dtype=torch.bfloat16) for size in sizes)
            inputs = [x.requires_grad_() for x in (q, k, v)]
            torch.autograd.grad(plans.attend(routes.route(*inputs, True, 0, None), *inputs), inputs, dout)
        if {source_key(90, launch) for launch in launches} - keys and number >= 10:
            late["new_form" if {launch.identity() for launch in launches} - known else "known_form"].append(length)
        keys |= {source_key(90, launch) for launch in launches}
        known |= {launch.identity() for launch in launches}
    return late


def _first(kernel: str, chip: int, case: OpCase) -> check.Variant:
    return next(v for v in check.variants([chip], [case]) if v.kernel == kernel)


def recorded_is_compiled() -> list[bool]:
    """Return for the first recorded kernel of four packages whether compiling it gives the recorded resources."""
    variants = (gate.wanted(package)[0] for package in ("triton_fa2", "gluon_fp8", "flash_attn_1", "generation"))
    return [gate.resources(v)[1] == v.resources() for v in variants]


def sinks_in_place() -> list[RecordedLaunch]:
    """Return launches that add sinks to out and its logsumexp, in place, of three head_dims."""
    outs = [torch.empty(1, 2, 256, head_dim, dtype=torch.bfloat16, device="meta") for head_dim in (16, 64, 256)]
    plan: Any = SimpleNamespace(prepare=None, forward=lambda q, *_: (q, q[..., 0].float()))
    with launches_on(90) as launches:
        for out in outs:
            WithSinks(Features(sinks=out[0, :, 0, 0].contiguous()), plan).forward(out, out, out)
    return launches


# S stores, F fences, B a barrier of both warpgroups, W a product
OF_WARPGROUPS = r"(s)tmatrix|(f)ence[.]proxy[.]async|(b)ar[.]sync\s+\d+, 256|(w)gmma[.]mma_async"


def steps_of(launch: RecordedLaunch, steps: str) -> str:
    """Return the letters that a pattern marks in a launch's PTX for sm_90, in its order."""
    return "".join(map("".join, re.findall(steps, compile_offline(90, launch).asm["ptx"]))).upper()


def ptx_without_target(chip: int, launch: RecordedLaunch) -> str:
    """Return the PTX of a kernel for a chip, without the line that names the chip."""
    return re.sub(r"[.]target.*", "", compile_offline(chip, launch).asm["ptx"])


def hashes(folder: Path) -> dict[str, list[str]]:
    """Return both hashes of a kernel, of its copy with another name, and of four kernels with other code."""
    path = folder / "three_kernels.py"
    path.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)

    def call(kernel: Any, number: int = 1, chip: int = 90, warps: int = 4) -> tuple[int, RecordedLaunch]:
        return chip, RecordedLaunch(kernel, (torch.empty(16, device="meta"), number), {}, {"num_warps": warps})

    plain = kernels.plain
    others = call(kernels.other), call(plain, 2), call(plain, chip=86), call(plain, warps=8)
    calls = (call(plain), call(kernels.renamed), *others)
    return {
        "fingerprints": [fingerprint(*each) for each in calls],
        "source_keys": [source_key(*each) for each in calls],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
