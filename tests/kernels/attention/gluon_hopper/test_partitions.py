"""The Hopper forward's barriers: its own code, run on the CPU in random orders (partitions.py)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("triton.experimental.gluon", exc_type=ImportError)

from kernels.attention.gluon_hopper import configs, forward, forward_softmax, plan, tuning
from kernels.attention.gluon_hopper.forward import forward_kernel
from kernels.attention.gluon_hopper.forward_second_half import second_half_kernel
from kernels.attention.gluon_hopper.plan import GluonHopperPlan
from tests.cases import cases
from tests.kernels.attention.gluon_hopper.interleavings.memory import Broken
from tests.kernels.attention.gluon_hopper.interleavings.program import Program
from tests.kernels.attention.gluon_hopper.interleavings.registers import Value, as_arguments

PROGRAMS = 3
SHAPES = cases(__file__, "shapes")


def launches_of(
    shape: str, head_dim: int, causal: bool, window: int, long: int, dtype: torch.dtype = torch.bfloat16
) -> list[Any]:
    """What is launched for a call."""
    batch, *sizes = SHAPES[shape]
    q, k = (torch.zeros(batch, heads, seqlen, head_dim, dtype=dtype) for heads, seqlen in sizes)
    made: list[Any] = []
    few = SimpleNamespace(multi_processor_count=PROGRAMS)
    choose = tuning.forward_tiles
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: few),
        mock.patch.object(plan, "Launch", lambda *arguments, **_: made.append(arguments)),
        mock.patch.object(tuning, "forward_tiles", lambda size, d, n, *rest: choose(size, d, long or n, *rest)),
    ):
        width = configs.NARROW_VALUES if head_dim == configs.WIDE_KEYS else head_dim
        GluonHopperPlan(q, k, k[..., :width], causal, window, 1.0)
    return made


def launch_of(*case: Any, recompute: bool = False) -> list[Any]:
    """The arguments of the forward kernel behind its tensors, and whose tiles a program has."""
    kernel, grid, _, makers, rest = launches_of(*case)[recompute]
    assert kernel is forward_kernel
    return [grid[0], len(makers), *rest]


def run(arguments: list[Any], number: int, seed: int, kernel: Any = forward_kernel) -> Program:
    """One program, its arguments as the model has them."""
    programs, tensors, *rest = arguments
    program = Program(number, programs, seed)
    values = [_tensor(name) for name in kernel.arg_names[:tensors]]
    program.run(kernel, values + as_arguments(rest))
    return program


def _tensor(name: str) -> Any:
    if not name.endswith("_desc"):
        return Value()
    return SimpleNamespace(name=name[0], dtype="bfloat16", layout=None, block_type=SimpleNamespace(nbytes=1))


MASKS = ((False, 0), (True, 0), (True, 70))  # causal, window_size
# shape, head_dims, masks, the queries that tiles are chosen for if not the shape's
CASES = [
    (shape, size, *mask, long)
    for shapes, sizes, masks, lengths in cases(__file__, "cases")
    for shape, size, mask, long in itertools.product(shapes, sizes, masks, lengths)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_no_order_of_the_partitions_breaks_a_rule_or_reads_another_tile(case: tuple[Any, ...]) -> None:
    arguments = launch_of(*case)
    for number in range(arguments[0]):
        for seed in range(3):
            program = run(arguments, number, seed)
            consumers = len(program.partitions) - 1
            for consumer, read in enumerate(program.read[consumer + 1] for consumer in range(consumers)):
                _check_tiles(read, consumer, consumers, arguments[-1])


def _check_tiles(read: list[Any], consumer: int, consumers: int, config: configs.ForwardConfig) -> None:
    """Products read the tiles that are theirs, in the order of their loads, and values once for each sum or piece."""
    pieces, sums = config.pieces, config.sums if config.pieces_v == 1 else 1
    scores = [factors for factors in read if len(factors) == 2][:-pieces]  # behind the last tile: never read
    for (_, piece, _), (_, _, pieces_loaded) in scores:
        q, queries_loaded = piece // pieces, pieces_loaded // pieces
        assert (q % consumers, q // consumers) == (consumer, queries_loaded // consumers - 1)
    keys = [k for _, (name, k, _) in scores if name == "k"]
    values = [v for ((name, v, _),) in (f for f in read if len(f) == 1) if name == "v"]
    assert len(keys) * config.sums == len(values) * pieces
    for loads, times in ((keys, 1), (values, sums)):
        assert loads == [load for load in sorted(set(loads)) for _ in range(times)]


def test_in_whole_windows_at_256_each_consumer_leaves_out_the_block_of_the_others_rows() -> None:
    programs = [run(launch_of("longer", 256, True, 129, 0), number, 0) for number in range(PROGRAMS)]
    values = [sum(len(factors) == 1 for program in programs for factors in program.read[n]) for n in (1, 2)]
    assert values == [3 * (2 + 4 * 3 + 3)] * 2  # of 3 heads; four of six tiles, of 4 blocks each, have whole windows


@pytest.mark.parametrize("causal", [False, True])
def test_everything_is_recomputed_where_a_program_flagged_an_overflow(causal, monkeypatch) -> None:
    arguments = launch_of("odd", 64, causal, 0, 8192, recompute=True)
    monkeypatch.setattr(forward, "any_overflow", lambda flags: True)
    assert run(arguments, 0, 0).read
    monkeypatch.setattr(forward, "any_overflow", lambda flags: False)
    assert not run(arguments, 0, 0).read


@pytest.mark.parametrize(("dtype", "launches"), [(torch.bfloat16, 2), (torch.float16, 1)])
def test_overflow_is_flagged_only_where_p_has_the_exponents_of_float32(dtype: torch.dtype, launches: int) -> None:
    assert len(launches_of("odd", 64, False, 0, 8192, dtype)) == launches


@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_the_second_half_takes_the_blocks_that_the_first_half_kept(causal: bool, window: int) -> None:
    first, second = launches_of("longer", configs.HALVED, causal, window, 0)
    assert second[0] is second_half_kernel
    for number in range(PROGRAMS):
        arguments = [[launch[1][0], len(launch[3]), *launch[4]] for launch in (first, second)]
        programs = run(arguments[0], number, 0), run(arguments[1], number, 0, second_half_kernel)
        kept, taken = (program.loaded["v"] for program in programs)
        assert kept == taken == programs[1].loaded["p"] / 2 > 0
        values = [[v for ((_, v, _),) in programs[1].read[consumer]] for consumer in (1, 2)]
        assert all(own == sorted(set(own)) for own in values)


ANYTHING_BUT_WAITING = "^(?!all wait)"


@pytest.mark.parametrize("head_dim", [64, 128, 160, 256])
@pytest.mark.parametrize(
    ("module", "left_out", "what"),
    [
        (forward, "acquire_keys_slot", ANYTHING_BUT_WAITING),
        (forward, "acquire_values_slot", ANYTHING_BUT_WAITING),
        (forward_softmax, "release_keys", "^all wait"),
        (forward_softmax, "release_values", "^all wait"),
    ],
)
def test_a_wait_or_an_arrival_that_is_left_out_is_found(head_dim, module, left_out, what, monkeypatch) -> None:
    monkeypatch.setattr(module, left_out, lambda *_: None)
    arguments = launch_of("longer", head_dim, False, 0, 0)
    with pytest.raises(Broken, match=what):
        for seed in range(20):
            run(arguments, 0, seed)
