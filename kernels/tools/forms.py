"""List, check or time the forms of a call: `python -m kernels.tools.forms 8 16 2048 128 --causal [--time]`.

A form is a row of a table in `kernels/tuned`. The list shows, for each table that decides the call, the form that the
chip's file chooses, and with --all what the files of all chips have in its place. Without a GPU, --check compiles each
for the chip and prints its shared memory, registers and spills. With one, --time takes the median time of the call with
each, in rounds that interleave them. A form is better only if it is faster by more than 2 % beyond the spread.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import attention, decode, plans, routes, tables
from ..problem import FORWARD, TRAINING, Problem
from ..registry import UnsupportedCase
from ..tables import Form
from .capture import launches_on
from .cases import CHIPS
from .compile import fits, resources_of

ROUNDS = 7
CERTAIN = 1.02  # times as fast


def call_of(problem: Problem, device: str, attend: Callable[..., Any] = attention) -> Callable[[], object]:
    """Return a call of a problem, of `attend` or `kernels.decode`, on random tensors."""
    heads, rows = (problem.num_heads, problem.num_kv_heads), (problem.seqlen_q, problem.seqlen_k)
    dtype = getattr(torch, problem.dtype)
    sizes = ((heads[0], rows[0]), (heads[1], rows[1]), (heads[1], rows[1]))
    q, k, v = (torch.randn(problem.batch, *size, problem.head_dim, device=device).to(dtype) for size in sizes)
    if problem.operator == "decode":
        return lambda: decode(q, k, v)
    masks: dict[str, Any] = {"causal": "causal" in problem.mask, "window_size": problem.window_size}
    if problem.direction == FORWARD:
        return lambda: attend(q, k, v, **masks)
    inputs, dout = [x.requires_grad_() for x in (q, k, v)], torch.ones_like(q)
    return lambda: torch.autograd.grad(attend(*inputs, **masks), inputs, dout)


def forms(problem: Problem, chip: int, attend: Callable[..., Any] = attention) -> dict[Form, list[Form]]:
    """Return the forms that decide a problem on a chip (90 for 9.0), each with what could take its place."""
    plans.forget()
    routes.forget()
    with launches_on(chip), tables.asked() as found:
        call_of(problem, "cuda", attend)()
    plans.forget()
    tiles = (form for form in found if "block_n" in form.names)
    return {form: form.others(tables.shared_memory()[chip]) for form in tiles}


def reason_against(form: Form, problem: Problem, chip: int) -> str | None:
    """Return why a chip cannot compute a problem by a form, found by compiling it; None if it can."""
    plans.forget()
    with launches_on(chip) as launches, tables.using(form):
        call_of(problem, "cuda")()
    plans.forget()
    for launch in launches:
        needs = resources_of(chip, launch)
        if not fits(chip, needs):
            limit = tables.shared_memory()[chip]
            return (
                f"{launch.kernel.__name__} needs {needs.shared_bytes} bytes of shared memory, and a block has {limit}."
            )
    return None


def times_ms(
    problem: Problem, candidates: Sequence[Form], bench: Callable[[Callable[[], object]], float], device: str = "cuda"
) -> dict[Form, list[float]]:
    """Return the times of a call by form, interleaved; a form that this device cannot run is left out, with a line."""
    call = call_of(problem, device)
    found: dict[Form, list[float]] = {form: [] for form in candidates}
    for _ in range(ROUNDS):
        for form in list(found):
            plans.forget()
            try:
                with tables.using(form):
                    found[form].append(bench(call))
            except (UnsupportedCase, RuntimeError) as error:
                print(f"{form.words}: {type(error).__name__} {str(error)[:100]}", flush=True)
                del found[form]
    plans.forget()
    return found


def better(times: dict[Form, list[float]], chosen: Form) -> list[Form]:
    """Return the forms that are faster than the chosen one in every round by over 2 %, the fastest first."""
    least = min(times[chosen])
    certain = [form for form, found in times.items() if max(found) * CERTAIN < least]
    return sorted(certain, key=lambda form: statistics.median(times[form]))


def main(arguments: list[str] | None = None) -> None:
    """Print the forms of a call."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tools.forms", description=__doc__.split("\n")[0])
    for name in ("batch", "heads", "seqlen", "head_dim"):
        parser.add_argument(name, type=int)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--queries", type=int, help="seqlen of q; that of k and v if it is not given")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--training", action="store_true", help="with the backward")
    parser.add_argument("--decode", action="store_true", help="over a cache of `seqlen` keys; one query if not given")
    parser.add_argument("--chip", type=int, default=90, choices=CHIPS)
    parser.add_argument("--all", action="store_true", help="what the tables of all chips have in a form's place")
    parser.add_argument("--check", action="store_true", help="compile each form for the chip; no GPU needed")
    parser.add_argument("--time", action="store_true", help="time a call with each form on this GPU")
    chosen = parser.parse_args(arguments)
    problem = _problem_of(chosen)
    if chosen.time and not torch.cuda.is_available():
        sys.exit("No CUDA device here: forms are timed on a GPU only. --check compiles them without one.")
    for form, others in forms(problem, chosen.chip).items():
        print(f"{form.words}\n  {form.source}", flush=True)
        candidates = [form, *others] if chosen.all or chosen.check or chosen.time else []
        if chosen.time:
            from triton import testing

            times = times_ms(problem, candidates, lambda call: testing.do_bench(call, return_mode="median"))
            faster = better(times, form) if form in times else []
            for each, found in sorted(times.items(), key=lambda item: statistics.median(item[1])):
                mark = " better" if each in faster else ""
                print(f"  {statistics.median(found):.4f} ms ({min(found):.4f} to {max(found):.4f}) {each.words}{mark}")
            continue
        for each in candidates:
            reason = reason_against(each, problem, chosen.chip) if chosen.check else None
            print(f"  {each.words}{f': {reason}' if reason else ''}", flush=True)


def _problem_of(chosen: argparse.Namespace) -> Problem:
    window = " window" * (chosen.window > 0)
    heads, queries = (chosen.heads, chosen.kv_heads or chosen.heads), 1 if chosen.decode else chosen.seqlen
    return Problem(
        chosen.dtype, f"{'causal' if chosen.causal else 'full'}{window}", chosen.batch, *heads,
        chosen.queries or queries, chosen.seqlen, chosen.head_dim, chosen.head_dim, chosen.window,
        operator="decode" if chosen.decode else "attention", direction=TRAINING if chosen.training else FORWARD,
    )  # fmt: skip


if __name__ == "__main__":
    main()
