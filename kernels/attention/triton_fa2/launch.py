"""From a kernel, its arguments and a ladder of tiles to a launch with little host work, and several of them in a row.

`JITFunction.run` binds and hashes every argument on every call (13 us of Python for these kernels); a launch made here
keeps the compiled kernel and calls it directly. Nothing is compiled, tuned or synchronised after the first call of a
shape, so launches can be captured in CUDA graphs.

A `LaunchSequence` is all that a later call does: one function asks for the tensors' addresses, for the stream and for
one room of scratch memory, and calls one launcher after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.errors import OutOfResources

from ...parallel_compile import WarmUp, compiled, launcher, places_in_room
from ...registry import UnsupportedCase
from .tuning import Tile

LaunchSequence = Callable[..., None]  # called with the tensors that were given for `in_a_row`
_REGISTERS = 65536  # of a multiprocessor
_STRIDES = ("_b", "_h", "_m", "_n")  # ends of the names of arguments that are strides
INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1 when this was imported


class PreparedLaunch(NamedTuple):
    """A compiled kernel, its grid, and the arguments of its launcher before and after the addresses of tensors."""

    run: Callable[..., None]
    programs: int
    before: tuple[Any, ...]
    after: tuple[Any, ...]


class Step(NamedTuple):
    """A launch, and which it takes of the tensors and rooms of a sequence."""

    launch: PreparedLaunch
    chosen: tuple[int, ...]


def make_launch(
    kernel: Any,
    pointers: Sequence[torch.Tensor],
    scalars: Sequence[int | float],
    constants: dict[str, Any],
    tiles: Sequence[Tile],
    programs: Callable[[Tile], int],
) -> PreparedLaunch:
    """Return the launch, for tensors like `pointers`, of the kernel with the first tile that fits this device.

    Raises UnsupportedCase if no tile fits.
    """
    if INTERPRETED:
        run = partial(_interpret, kernel, _constants_of(kernel, tiles[0], constants))
        return PreparedLaunch(run, programs(tiles[0]), (), tuple(scalars))
    made, tile = _first_that_fits(kernel, [*pointers, *scalars], constants, tiles)
    run, before = launcher(made)
    return PreparedLaunch(run, programs(tile), before, (*scalars, *_constants_of(kernel, tile, constants).values()))


class WarmUps:
    """Asked for launches as make_launch is, makes none: only notes how the kernel of each is warmed up."""

    def __init__(self) -> None:
        self.noted: list[WarmUp] = []

    def __call__(
        self,
        kernel: Any,
        pointers: Sequence[torch.Tensor],
        scalars: Sequence[int | float],
        constants: dict[str, Any],
        tiles: Sequence[Tile],
        programs: Callable[[Tile], int],
    ) -> PreparedLaunch:
        """Return a launch of no programs."""
        self.noted.append(partial(_warmed_up, kernel, [*pointers, *scalars], constants, tiles[0]))
        return PreparedLaunch(_interpret, 0, (), ())


def _constants_of(kernel: Any, tile: Tile, constants: dict[str, Any]) -> dict[str, Any]:
    """Return those constants that the kernel has, in its order."""
    values = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "SHARES": tile.num_warps, **constants}
    return {name: values[name] for name in kernel.arg_names if name in values}


def _first_that_fits(
    kernel: Any, args: list[Any], constants: dict[str, Any], tiles: Sequence[Tile]
) -> tuple[Any, Tile]:
    needed = 0
    for tile in tiles:
        made = compiled(partial(_warmed_up, kernel, args, constants, tile))
        try:
            made.run  # noqa: B018 - loads the kernel, which is when Triton checks what it needs against the device
        except OutOfResources as error:
            needed = error.required
            continue
        return made, tile
    raise UnsupportedCase(
        f"triton_fa2's smallest tile needs {needed} of a block's resources, more than this device has; "
        "use a smaller head_dim or a 16-bit dtype."
    )


def _warmed_up(kernel: Any, args: list[Any], constants: dict[str, Any], tile: Tile) -> Any:
    return kernel.warmup(
        *_as_declared(kernel, args),
        grid=(1,),
        **_constants_of(kernel, tile, constants),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
        launch_pdl=constants.get("PDL", False),
        **({"maxnreg": constants["MAX_REGISTERS"]} if "MAX_REGISTERS" in constants else {}),
    )


def most_registers(tile: Tile) -> int:
    """Return the registers of a thread with which a multiprocessor holds the tile's `programs` at once."""
    return min(255, _REGISTERS // (tile.programs * tile.num_warps * 32) // 8 * 8)


def _as_declared(kernel: Any, args: list[Any]) -> list[Any]:
    """Return the arguments that a kernel is compiled for: strides of a multiple of 8 as multiples of 16.

    Triton knows of a number whether 16 divides it, and accesses rows whose stride it does not divide, as of head_dim
    72, 2 bytes at a time, which cp.async cannot. A vector is 16 bytes, 8 numbers of 16 bits, so 8 is enough.
    """
    named = zip(kernel.arg_names, args)  # noqa: B905 - constants follow
    return [2 * x if name[-2:] in _STRIDES and x % 16 == 8 else x for name, x in named]


def in_a_row(steps: Sequence[Step], rooms: Sequence[torch.Tensor], device: torch.device) -> LaunchSequence:
    """Return what launches the steps one after the other; a step without programs is left out.

    `rooms` are tensors without memory, on the meta device: the scratch memory that steps take, after the tensors of a
    call. It is one allocation, alive until all steps are launched.
    """
    kept = [(*step.launch, itemgetter(*step.chosen)) for step in steps if step.launch.programs]
    if not kept:
        return _nothing
    return _interpreted(kept, rooms, device) if INTERPRETED else _on_device(kept, rooms, device)


def _on_device(steps: list[tuple[Any, ...]], rooms: Sequence[torch.Tensor], device: torch.device) -> LaunchSequence:
    offsets, room_bytes = places_in_room(rooms)
    index, stream_of = device.index, torch._C._cuda_getCurrentRawStream
    current_device = torch._C._cuda_getDevice if device.type == "cuda" else lambda: index

    def launch(*tensors: torch.Tensor) -> None:
        if current_device() != index:  # on which Triton launches
            with torch.cuda.device(index):
                launch(*tensors)
            return
        addresses = [x.data_ptr() for x in tensors]  # of a tensor itself the launcher would ask the driver
        if room_bytes:
            room = torch.empty(room_bytes, dtype=torch.uint8, device=device)
            start = room.data_ptr()
            addresses += [start + offset for offset in offsets]
        stream = stream_of(index)
        for run, programs, before, after, chosen in steps:
            run(programs, 1, 1, stream, *before, *chosen(addresses), *after)

    return launch


def _interpreted(steps: list[tuple[Any, ...]], rooms: Sequence[torch.Tensor], device: torch.device) -> LaunchSequence:
    def launch(*tensors: torch.Tensor) -> None:
        found = [*tensors, *(_with_memory(room, device) for room in rooms)]
        for run, programs, _, after, chosen in steps:
            run(programs, *chosen(found), *after)

    return launch


def _with_memory(room: torch.Tensor, device: torch.device) -> torch.Tensor:
    numbers = room.untyped_storage().nbytes() // room.itemsize
    return torch.empty(numbers, dtype=room.dtype, device=device).as_strided(room.shape, room.stride())


def _interpret(kernel: Any, constants: dict[str, Any], programs: int, *arguments: Any) -> None:
    kernel[(programs,)](*arguments, **constants)


def _nothing(*tensors: torch.Tensor) -> None:
    """Launch nothing, as for tensors without elements."""
