"""Launches with little host work: a compiled kernel with its grid and constants, and sequences of launches.

`recorded` returns the function that later calls of a shape use (kernels/DESIGN.md, "Host path"). Nothing is compiled,
tuned or synchronized then, so a CUDA graph can capture it.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import torch
import triton

from .parallel_compile import launcher, places_in_room

INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1 when this was imported


class Recordable(Protocol):
    """A launch for tensors that differ only in their addresses."""

    @property
    def takes_addresses(self) -> bool:
        """Return whether `at` can be called."""
        ...

    def at(self, stream: int, addresses: tuple[Any, ...]) -> None:
        """Launch on a stream for tensors at these addresses; the interpreter takes the tensors themselves."""
        ...


Step = tuple[Recordable, Sequence[torch.Tensor]]  # a launch and its tensors


class PreparedLaunch:
    """A compiled kernel with its grid and all arguments after its tensors.

    made: Triton's CompiledKernel; constants: by name, after the scalars.
    """

    takes_addresses = True

    def __init__(
        self, made: Any, grid: tuple[int, int, int], scalars: Iterable[Any], constants: dict[str, Any]
    ) -> None:
        self._run, self._first = launcher(made)[:2]
        self._grid, self._rest = grid, (*scalars, *constants.values())

    def at(self, stream: int, addresses: tuple[Any, ...]) -> None:
        """Launch with one argument for each address, None where there is no tensor."""
        self._run(*self._grid, stream, *self._first, *addresses, *self._rest)


class InterpretedLaunch:
    """A kernel in Triton's interpreter with its grid and all arguments after its tensors."""

    takes_addresses = True

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], scalars: Iterable[Any], constants: dict[str, Any]
    ) -> None:
        self._kernel, self._grid, self._scalars, self._constants = kernel, grid, tuple(scalars), constants

    def at(self, stream: int, tensors: tuple[Any, ...]) -> None:
        """Run the kernel with one argument for each tensor."""
        self._kernel[self._grid](*tensors, *self._scalars, **self._constants)


def kind(x: Any, free: bool = False, free_inside: bool = False) -> Any:
    """Return the type of a kernel's argument and what of it Triton may compile other code for.

    `free`: of a number only whether it has 32 bits; `free_inside`: so of numbers in a tuple.
    """
    if type(x) is int:
        return x.bit_length() >> 5 if free else (x.bit_length() >> 5, x == 1, x % 16 == 0)
    if isinstance(x, tuple):
        if free_inside:
            return tuple([each.bit_length() >> 5 if type(each) is int else kind(each, True, True) for each in x])
        return tuple(map(kind, x))
    return (x.dtype, x.data_ptr() % 16) if isinstance(x, torch.Tensor) else type(x)


class Rooms(list[torch.Tensor]):
    """The tensors that are scratch memory of a sequence of launches."""

    def note(self, room: torch.Tensor) -> torch.Tensor:
        """Add and return a tensor whose contents these launches write before they read them."""
        self.append(room)
        return room

    def float32(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """Add and return such room on a tensor's device; new_empty of a tensor without memory would be Python."""
        return self.note(torch.empty(shape, dtype=torch.float32, device=like.device))


def recorded(
    steps: Sequence[Step],
    tensors: Sequence[torch.Tensor],
    rooms: Rooms,
    device: torch.device,
    *,
    interpreted: bool = False,
) -> Callable[..., None] | None:
    """Return the function that launches the steps for tensors that differ from `tensors` only in their addresses.

    Each of `tensors` is a separate object. Tensors of a step that are neither among `tensors` nor rooms are reused in
    every call. The rooms may be tensors without memory, on the meta device: they become parts of one allocation, which
    lives until all steps are launched. In Triton's interpreter (`interpreted`) the steps take tensors. Returns None if
    a launch needs more than addresses.
    """
    if not all(launch.takes_addresses for launch, _ in steps):
        return None
    places = {id(x): place for place, x in enumerate((*tensors, *rooms))}
    fixed = {id(x): x for _, used in steps for x in used if id(x) not in places}
    places |= {each: place for place, each in enumerate(fixed, len(places))}
    chosen = [(launch.at, _chooser([places[id(x)] for x in used])) for launch, used in steps]
    replay = _interpreted if interpreted else _on_device
    return replay(chosen, rooms, list(fixed.values()), device)


Chosen = Sequence[tuple[Callable[[int, tuple[Any, ...]], None], Callable[[list[Any]], tuple[Any, ...]]]]


def _on_device(
    steps: Chosen, rooms: Sequence[torch.Tensor], fixed: list[torch.Tensor], device: torch.device
) -> Callable[..., None]:
    offsets, room_bytes = places_in_room(rooms)
    fixed_addresses = [x.data_ptr() for x in fixed]
    index, stream_of = device.index, torch._C._cuda_getCurrentRawStream
    current_device = torch._C._cuda_getDevice if device.type == "cuda" else lambda: index

    def launch(*tensors: torch.Tensor) -> None:
        if current_device() != index:  # Triton launches on the current device
            with torch.cuda.device(index):
                launch(*tensors)
            return
        addresses = [x.data_ptr() for x in tensors]  # given a tensor, the launcher would query the driver
        if room_bytes:
            room = torch.empty(room_bytes, dtype=torch.uint8, device=device)
            start = room.data_ptr()
            addresses += [start + offset for offset in offsets]
        addresses += fixed_addresses
        stream = stream_of(index)
        for at, chosen in steps:
            at(stream, chosen(addresses))

    return launch


def _interpreted(
    steps: Chosen, rooms: Sequence[torch.Tensor], fixed: list[torch.Tensor], device: torch.device
) -> Callable[..., None]:
    def launch(*tensors: torch.Tensor) -> None:
        found = [*tensors, *(_with_memory(room, device) for room in rooms), *fixed]
        for at, chosen in steps:
            at(0, chosen(found))

    return launch


def _with_memory(room: torch.Tensor, device: torch.device) -> torch.Tensor:
    numbers = room.untyped_storage().nbytes() // room.itemsize
    return torch.empty(numbers, dtype=room.dtype, device=device).as_strided(room.shape, room.stride())


def _chooser(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Return a function that takes the elements at these places of a list as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda numbers: (numbers[places[0]],)
