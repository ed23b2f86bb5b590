"""Launching with little host work: what depends on a shape alone is made once, and a call only fills in addresses.

`JITFunction.run` binds and hashes every argument of every call and a descriptor checks itself whenever it is made:
together over 100 us for these kernels on the H200's host, more than the kernels of short sequences take.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


class Launch:
    """A kernel on a fixed grid, for arguments that differ only in their addresses."""

    def __init__(self, kernel: Any, grid: tuple[int, int, int], device: torch.device) -> None:
        self._kernel, self._grid, self._device = kernel, grid, device.index
        self._run: Any = None

    def __call__(self, *arguments: Any) -> None:
        if self._run is None:  # compiles, launches and gives the compiled kernel
            compiled = self._kernel[self._grid](*arguments, num_warps=4)
            self._run, self._function, self._metadata = compiled.run, compiled.function, compiled.packed_metadata
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        self._run(*self._grid, stream, self._function, self._metadata, None, None, None, *arguments)


class Descriptor:
    """Makes descriptors of tiles of tensors with one shape and one set of strides."""

    def __init__(self, x: torch.Tensor, block: list[int]) -> None:
        if len(block) == 4:
            layout = gl.NVMMASharedLayout.get_default_for(block, _DTYPES[x.dtype])
        else:
            layout = gl.NVMMASharedLayout(0, 32, len(block))
        strides = [stride if size > 1 else 8 for stride, size in zip(x.stride()[:-1], x.shape, strict=False)]
        self._fields = vars(TensorDescriptor(x, list(x.shape), [*strides, 1], block, layout))
        self._fields["base"] = None

    def __call__(self, x: torch.Tensor) -> TensorDescriptor:
        descriptor = object.__new__(TensorDescriptor)
        vars(descriptor).update(self._fields, base=x)
        return descriptor


def is_addressable(x: torch.Tensor) -> bool:
    """Whether the copy engine can address a (batch, heads, rows, columns) tensor."""
    strides = [stride for stride, size in zip(x.stride()[:3], x.shape, strict=False) if size > 1]
    aligned = x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides)
    return aligned and (x.stride(3) == 1 or x.shape[3] == 1)


def addressable(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself if the copy engine can address it, else a copy that it can."""
    return x if is_addressable(x) else empty_addressable(x).copy_(x)


def empty_addressable(like: torch.Tensor) -> torch.Tensor:
    """An empty tensor with the shape and order of dimensions of `like`, rows at multiples of 16 bytes."""
    order = sorted(range(3), key=like.stride, reverse=True)
    width = -(-like.shape[3] // 8) * 8
    room = torch.empty([like.shape[dim] for dim in order] + [width], dtype=like.dtype, device=like.device)
    return room.permute([order.index(dim) for dim in range(3)] + [3])[..., : like.shape[3]]
