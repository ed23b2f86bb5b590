"""From a kernel, its arguments and a ladder of tiles to a callable that launches it with little host work.

`JITFunction.run` binds and hashes every argument on every call (13 us of Python for these kernels); a launch made here
keeps the compiled kernel and calls it directly. Nothing is compiled, tuned or synchronised after the first call of a
shape, so launches can be captured in CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources

from kernels.attention.triton_fa2.tuning import Tile
from kernels.parallel_compile import WarmUp, compiled, launcher
from kernels.registry import UnsupportedCase

Launch = Callable[..., None]
_STRIDES = ("_b", "_h", "_m", "_n")  # ends of the names of arguments that are strides
INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1 when this was imported


def make_launch(
    kernel: Any,
    pointers: Sequence[torch.Tensor],
    scalars: Sequence[int | float],
    constants: dict[str, Any],
    tiles: Sequence[Tile],
    programs: Callable[[Tile], int],
) -> Launch:
    """Return a callable that takes tensors like `pointers` and runs the kernel on the first tile that fits this device.

    Raises UnsupportedCase if no tile fits.
    """
    if INTERPRETED:
        return _interpreted(kernel, scalars, constants, tiles[0], programs(tiles[0]))
    made, tile = _first_that_fits(kernel, [*pointers, *scalars], constants, tiles)
    rest = (*scalars, *_constants_of(kernel, tile, constants).values())
    return _launch_of(made, programs(tile), pointers[0].device.index, rest)


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
    ) -> Launch:
        """Return a launch that does nothing."""
        self.noted.append(partial(_warmed_up, kernel, [*pointers, *scalars], constants, tiles[0]))
        return _nothing


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
    )


def _as_declared(kernel: Any, args: list[Any]) -> list[Any]:
    """Return the arguments that a kernel is compiled for: strides of a multiple of 8 as multiples of 16.

    Triton knows of a number whether 16 divides it, and accesses rows whose stride it does not divide, as of head_dim
    72, 2 bytes at a time, which cp.async cannot. A vector is 16 bytes, 8 numbers of 16 bits, so 8 is enough.
    """
    named = zip(kernel.arg_names, args)  # noqa: B905 - constants follow
    return [2 * x if name[-2:] in _STRIDES and x % 16 == 8 else x for name, x in named]


def _launch_of(made: Any, programs: int, device: int, rest: tuple[Any, ...]) -> Launch:
    run, first = launcher(made)
    stream_of = torch._C._cuda_getCurrentRawStream

    def launch(*pointers: torch.Tensor) -> None:  # of a tensor in place of its address the launcher asks the driver
        run(programs, 1, 1, stream_of(device), *first, *[x.data_ptr() for x in pointers], *rest)

    return launch if programs else _nothing


def _interpreted(kernel: Any, scalars: Sequence[Any], constants: dict[str, Any], tile: Tile, programs: int) -> Launch:
    def launch(*pointers: torch.Tensor) -> None:
        kernel[(programs,)](*pointers, *scalars, **_constants_of(kernel, tile, constants))

    return launch if programs else _nothing


def _nothing(*pointers: torch.Tensor) -> None:
    """Launch nothing, as for tensors without elements."""
