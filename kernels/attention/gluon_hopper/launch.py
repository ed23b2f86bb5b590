"""Launching with little host work: what depends on a shape alone is made once, and a call only fills in addresses.

`run_in_order` runs launches that follow one another; the kernels of those that never ran are compiled side by side
before the first. Later calls replay the launches (`kernels.launches.recorded`): each looks up its arguments by the
addresses of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ...constants import Constants
from ...launches import kind
from ...parallel_compile import WarmUp, compile_side_by_side, compiled, launcher
from ...unspecialized import UnspecializedTuples

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
_COMPILED: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # answers of `launcher` by what decides a kernel's code
_constants: Callable[[Any], Constants] = cache(Constants)
_MAX_KNOWN = 256  # addresses, alone and as a launch has them, that it remembers; a caching allocator gives few


class Descriptor:
    """Makes descriptors of tiles of tensors with one shape and one set of strides."""

    def __init__(self, x: torch.Tensor, block: list[int]) -> None:
        self.tile = x.dtype, *block
        shape, strides = list(x.shape), [*x.stride()[:-1], 1]
        if min(shape) < 2:  # TMA takes strides of whole 16 bytes, also where they do not matter
            unit = max(8, 16 // x.itemsize)
            strides[:-1] = [stride if size > 1 else unit for stride, size in zip(strides[:-1], shape, strict=False)]
        self._fields = {**_fields_of(*self.tile), "shape": shape, "strides": strides}

    def __call__(self, x: Any) -> TensorDescriptor:
        descriptor = object.__new__(TensorDescriptor)
        vars(descriptor).update(self._fields, base=x)
        return descriptor


@cache
def _fields_of(dtype: torch.dtype, *block: int) -> dict[str, Any]:
    """Return the fields of a descriptor of such tiles; to make one and to check it takes as long as to copy seven."""
    if len(block) == 4:
        layout = gl.NVMMASharedLayout.get_default_for(list(block), _DTYPES[dtype])
    else:
        layout = gl.NVMMASharedLayout(0, 32, len(block))
    return vars(TensorDescriptor.from_tensor(torch.empty(block, dtype=dtype), list(block), layout))


class Launch:
    """A kernel on a fixed grid, for tensors that differ only in their addresses.

    `makers`: a tensor's Descriptor, or None where the kernel takes its address; `rest`: the arguments after them, one
    of which may be a dataclass of constants; `pdl`: the kernel may begin while the one before it still runs, and waits
    by itself for what it reads.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        device: torch.device,
        makers: Sequence[Descriptor | None],
        rest: tuple[Any, ...],
        *,
        pdl: bool = False,
    ) -> None:
        self._options = {"num_warps": 4, **({"launch_pdl": True} if pdl else {})}
        self._kernel, self._grid, self._device = kernel, grid, device.index
        self._makers = tuple(makers)
        self._rest = tuple([_constants(x) if hasattr(x, "__dataclass_fields__") else x for x in rest])
        self._run: Any = None
        self._first: tuple[Any, ...] = ()
        self._encoders: list[tuple[Descriptor | None, dict[int, list[Any]], Any]] = []
        self._known: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def is_new(self, *tensors: torch.Tensor) -> bool:
        """Return whether it has never run, and no other launch with its kernel has had such arguments."""
        if self._run is None and (made := _COMPILED.get(self._form(tensors))):
            self._remember(*made)
        return self._run is None

    @property
    def takes_addresses(self) -> bool:
        """Return whether `at` can be called: it has run, and Triton's launcher takes addresses for tensors."""
        return bool(self._encoders)

    def warm_up(self, *tensors: torch.Tensor) -> Any:
        """Return what JITFunction.warmup does: the compiled kernel, or its future in an AsyncCompileMode."""
        return self._kernel.warmup(*self._described(tensors), grid=self._grid, **self._options)

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self._run is None:
            made = launcher(compiled(partial(self.warm_up, *tensors)))
            self._remember(*made)
            if self._encoders:
                _COMPILED[self._form(tensors)] = made
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        if self._encoders:
            self.at(stream, tuple([x.data_ptr() for x in tensors]))
        else:
            self._run(*self._grid, stream, *self._first, *self._described(tensors))

    def at(self, stream: int, addresses: tuple[int, ...]) -> None:
        """Launch for tensors at these addresses, where `takes_addresses`."""
        arguments = self._known.get(addresses)
        if arguments is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            arguments = self._known[addresses] = (*self._first, *self._flat(addresses), *self._flat_rest)
        self._run(*self._grid, stream, *arguments)

    def _form(self, tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Return what decides the code, as finely as Triton looks at it or more so."""
        tiles = [make.tile if make else kind(x) for make, x in zip(self._makers, tensors, strict=True)]
        rest = zip(self._rest, _readings(self._kernel, len(tiles)), strict=False)  # constants may be left out
        kinds = [kind(x, *free) if free else x for x, free in rest]
        return self._kernel, self._device, *self._options.items(), *tiles, *kinds

    def _remember(self, run: Any, first: tuple[Any, ...], descriptions: list[Any] | None) -> None:
        self._run, self._first = run, first
        if descriptions is not None:
            self._flat_rest = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in self._rest]
            left = iter(descriptions)
            self._encoders = [(make, {}, next(left) if make else None) for make in self._makers]

    def _described(self, tensors: tuple[torch.Tensor, ...]) -> list[Any]:
        return [*(make(x) if make else x for make, x in zip(self._makers, tensors, strict=True)), *self._rest]

    def _flat(self, addresses: tuple[int, ...]) -> list[Any]:
        """Return addresses, and descriptors in their encoded form, which depends on nothing but the address."""
        arguments: list[Any] = []
        for address, (make, known, description) in zip(addresses, self._encoders, strict=True):
            if make is None:
                arguments.append(address)
                continue
            encoded = known.get(address)
            if encoded is None:
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                encoded = known[address] = _encode(make(SimpleNamespace(data_ptr=partial(int, address))), description)
            arguments += encoded
        return arguments


@cache
def _readings(kernel: Any, tensors: int) -> list[tuple[bool, bool] | None]:
    """Return how `kind` reads the arguments of a kernel that come after so many tensors; None for a constant."""
    in_tuples = isinstance(kernel, UnspecializedTuples)
    params = getattr(kernel, "params", ())[tensors:]  # none in Triton's interpreter
    frees = [None if param.is_constexpr else bool(param.do_not_specialize) for param in params]
    return [None if free is None else (free, free and in_tuples) for free in frees]


def _encode(descriptor: TensorDescriptor, description: Any) -> list[Any]:
    from triton.backends.nvidia.driver import make_tensordesc_arg  # has this form in Triton 3.6

    return make_tensordesc_arg(descriptor, description)


def is_addressable(x: torch.Tensor) -> bool:
    """Return whether TMA can address a (batch, heads, rows, columns) tensor."""
    strides = [stride for stride, size in zip(x.stride()[:3], x.shape, strict=False) if size > 1]
    aligned = x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides)
    return aligned and (x.stride(3) == 1 or x.shape[3] == 1)


def addressable(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if TMA can address it, else a copy that it can."""
    return x if is_addressable(x) else empty_addressable(x).copy_(x)


def empty_addressable(like: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor with the shape and order of dimensions of `like`, rows at multiples of 16 bytes."""
    order = sorted(range(3), key=like.stride, reverse=True)
    width = -(-like.shape[3] // 8) * 8
    room = torch.empty([like.shape[dim] for dim in order] + [width], dtype=like.dtype, device=like.device)
    return room.permute([order.index(dim) for dim in range(3)] + [3])[..., : like.shape[3]]


Step = tuple[Launch, tuple[torch.Tensor, ...]]


def run_in_order(steps: Sequence[Step], meanwhile: Callable[[], None] | None = None) -> None:
    """Launch each with its tensors; where kernels must be compiled first, do something else meanwhile."""
    compile_side_by_side(warm_ups(steps), meanwhile)
    for launch, tensors in steps:
        launch(*tensors)


def warm_ups(steps: Iterable[Step]) -> list[WarmUp]:
    """Return what compiles the kernels of steps, as far as they are not known."""
    return [partial(launch.warm_up, *tensors) for launch, tensors in steps if launch.is_new(*tensors)]
