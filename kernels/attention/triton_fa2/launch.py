"""From a kernel, its arguments and a list of tiles to a launch for tensors with the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from ...constants import Constants
from ...launches import INTERPRETED, InterpretedLaunch, PreparedLaunch, kind
from ...parallel_compile import WarmUp, compiled
from ...registry import UnsupportedCase
from .arguments import Config, Strides
from .tuning import Tile

_REGISTERS = 65536  # per multiprocessor
_ALIGNED, _ODD = 16, 9  # Triton compiles a length for whether 16 divides it
_ODD_LENGTHS: set[int] = set()  # the first two lengths that 16 does not divide
_OF_BOTH_KINDS: set[Any] = set()  # kernels with their constants, of which lengths of both kinds are compiled
_COMPILED: dict[Any, tuple[Any, Tile, Constants]] = {}  # with the first tile that fits, by KernelCall.code


@dataclass(frozen=True)
class KernelCall:
    """A kernel with its arguments, for any of several tiles."""

    kernel: Any
    tensors: tuple[Any, ...]  # a named tuple of arguments.py
    scalars: tuple[int | float, ...]
    config: Config  # where block_m or block_n is 0, the tile's
    tiles: Sequence[Tile]  # by preference
    programs: Callable[[Tile], int]
    max_registers: int | None = None

    @cached_property
    def code(self) -> tuple[Any, ...]:
        """Return what decides the compiled code and the tile, as finely as Triton looks at it or more so."""
        readings = zip(self.scalars, _free(self.kernel), strict=False)
        numbers = [kind(x, any_number) for x, any_number in readings]
        tensors, strides = map(kind, self.tensors), kind(strides_of(self.tensors, _declared))
        chosen = self.kernel, self.tensors[0].device, self.config, *self.tiles, self.max_registers
        return *chosen, *tensors, strides, *numbers

    def constants(self, tile: Tile) -> Constants:
        """Return the configuration with a tile."""
        block_m, block_n = self.config.block_m or tile.block_m, self.config.block_n or tile.block_n
        return Constants(replace(self.config, block_m=block_m, block_n=block_n))

    def lengths(self) -> dict[str, int]:
        """Return the lengths that Triton compiles the kernel for."""
        named = dict(zip(self.kernel.arg_names[2:], self.scalars, strict=False))
        return {name: int(named[name]) for name in _lengths_of_code(self.kernel)}

    def of_the_other_kind(self) -> KernelCall:
        """Return the call for lengths that 16 divides where it does not divide these, and the reverse."""
        other = {name: _ODD if n % _ALIGNED == 0 else _ALIGNED for name, n in self.lengths().items() if n > 1}
        names = self.kernel.arg_names[2:]
        return replace(self, scalars=tuple(other.get(*x) for x in zip(names, self.scalars, strict=False)))

    def warm_up(self, tile: Tile) -> Any:
        """Compile the kernel for a tile, as JITFunction.warmup does."""
        return self.kernel.warmup(
            self.tensors,
            strides_of(self.tensors, _declared),
            *self.scalars,
            CONFIG=self.constants(tile),
            grid=(1,),
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            enable_fp_fusion=True,
            launch_pdl=self.config.pdl,
            **({"maxnreg": self.max_registers} if self.max_registers else {}),
        )


class _TupleLaunch(PreparedLaunch):
    """A launch of a kernel whose first argument is a tuple of all tensors."""

    def at(self, stream: int, addresses: tuple[int, ...]) -> None:
        """Launch with the addresses of the tuple."""
        self._run(*self._grid, stream, *self._first, addresses, *self._rest)


class _InterpretedTupleLaunch(InterpretedLaunch):
    """A kernel in the interpreter whose first argument is a named tuple of all tensors."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._make = make

    def at(self, stream: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """Run the kernel with the tensors of the tuple."""
        super().at(stream, (self._make(*tensors),))


def make_launch(call: KernelCall) -> Any:
    """Return the launch with the first tile that fits this device. Raises UnsupportedCase if no tile fits."""
    if INTERPRETED:
        made, tile, constants = None, call.tiles[0], call.constants(call.tiles[0])
    else:
        made, tile, constants = _first_that_fits(call)
    arguments = (call.programs(tile), 1, 1), (strides_of(call.tensors), *call.scalars), {"CONFIG": constants}
    if INTERPRETED:
        return _InterpretedTupleLaunch(type(call.tensors), call.kernel, *arguments)
    return _TupleLaunch(made, *arguments)


def warm_ups(calls: Sequence[KernelCall]) -> list[WarmUp]:
    """Return what compiles the kernels of calls, as far as they are not known.

    Once two lengths were seen that 16 does not divide, each is compiled for both kinds, so that a later length of the
    same form finds its kernel.
    """
    found: list[WarmUp] = []
    for call in calls:
        tile, lengths = call.tiles[0], call.lengths()
        if call.code not in _COMPILED:
            found.append(partial(call.warm_up, tile))
        if len(_ODD_LENGTHS) < 2:
            _ODD_LENGTHS.update(length for length in lengths.values() if length % _ALIGNED)
        form = call.kernel, call.config, tile
        if lengths and len(_ODD_LENGTHS) > 1 and form not in _OF_BOTH_KINDS:
            _OF_BOTH_KINDS.add(form)
            found.append(partial(call.of_the_other_kind().warm_up, tile))
    return found


def _numbers(kernel: Any) -> list[Any]:
    """Return what Triton knows of a kernel's parameters after tensors and strides; nothing in the interpreter."""
    return getattr(kernel, "params", [])[2:]


@cache
def _lengths_of_code(kernel: Any) -> list[str]:
    """Return the lengths among a kernel's numbers for which Triton compiles it."""
    lengths = [x for x in _numbers(kernel) if x.name in ("seqlen_q", "seqlen_k")]
    return [x.name for x in lengths if not (x.do_not_specialize or x.do_not_specialize_on_alignment)]


@cache
def _free(kernel: Any) -> list[bool]:
    """Return of each of a kernel's numbers whether it is compiled once for all of them."""
    return [bool(x.do_not_specialize) for x in _numbers(kernel)]


def _first_that_fits(call: KernelCall) -> tuple[Any, Tile, Constants]:
    """Return the compiled kernel, its tile and its constants."""
    if known := _COMPILED.get(call.code):
        return known
    needed = 0
    for tile in call.tiles:
        made = compiled(partial(call.warm_up, tile))
        try:
            made.run  # noqa: B018 - loads the kernel, which is when Triton checks its needs against the device
        except OutOfResources as error:
            needed = error.required
            continue
        found = _COMPILED[call.code] = made, tile, call.constants(tile)
        return found
    raise UnsupportedCase(
        f"triton_fa2's smallest tile needs {needed} of a block's resources, more than this device has; "
        "use a smaller head_dim or a 16-bit dtype."
    )


def most_registers(tile: Tile) -> int:
    """Return the registers of a thread with which a multiprocessor holds the tile's `programs` at once."""
    return min(255, _REGISTERS // (tile.programs * tile.num_warps * 32) // 8 * 8)


def strides_of(tensors: Any, declared: Callable[[int], int] = int) -> tuple[Any, ...]:
    """Return the strides of a named tuple of tensors, in a tuple of the same type; None for fields with a default."""
    strided = [name for name in tensors._fields if name not in tensors._field_defaults]
    return type(tensors)(*(Strides(*map(declared, getattr(tensors, name).stride()[:3])) for name in strided))


def _declared(stride: int) -> int:
    """Return the stride that a kernel is compiled for: a multiple of 16 in place of an odd multiple of 8.

    Triton knows of a number whether 16 divides it. If 16 does not divide a row's stride, as at head_dim 72, it accesses
    rows 2 bytes at a time, which cp.async cannot. A vector is 16 bytes, 8 numbers of 16 bits, so 8 is enough.
    """
    return 2 * stride if stride % 16 == 8 else stride
