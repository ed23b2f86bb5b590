"""Weights of 8 bits in registers: four of a row to a 32-bit number, in the order in which the tensor cores take them.

A tensor of 8-bit numbers that lives across a loop's iterations takes a register a number, and four moves of bytes at
each end; one of 32-bit numbers takes a quarter of them and no move.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_PACK = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
    " mov.b32 $0, {low, high}; }"
)


@gluon.constexpr_function
def packed_layout(keys):
    """64 rows of keys / 4 packed numbers, as the warpgroup's first factor of a product has them."""
    registers = [[0, 0, 1], [0, 0, 2], [8, 0, 0]]
    registers += [[0, place, 0] for place in (4, 8, 16, 32) if 4 * place < keys]
    lanes, warps = [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]], [[16, 0, 0], [32, 0, 0]]
    return gl.SliceLayout(2, gl.DistributedLinearLayout(registers, lanes, warps, [], [64, keys // 4, 4]))


@gluon.jit
def pack(p):
    """The weights of 64 rows, rounded to e4m3; no number changes its thread.

    Of 32 keys a thread holds 8 g + 2 c + e (c its place in a row of four) where an 8-bit factor has 16 h + 4 c + 2 f
    + e; with g = 2 h + f that is another order of the keys, and the values are stored in it (quantising.py).
    """
    ROWS: gl.constexpr = p.shape[0]
    KEYS: gl.constexpr = p.shape[1]
    p = p.reshape([ROWS, KEYS // 32, 2, 2, 4, 2]).permute((0, 1, 2, 4, 3, 5)).reshape([ROWS, KEYS // 4, 2, 2])
    even, odd = gl.split(p)
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    packed = gl.inline_asm_elementwise(
        _PACK, "=r,f,f,f,f", [first, second, third, fourth], dtype=gl.int32, is_pure=True, pack=1
    )
    return gl.convert_layout(packed, packed_layout(KEYS), assert_trivial=True)


@gluon.jit
def unpack(packed, layout: gl.constexpr):
    """Packed weights as the first factor of a product, in `layout`: the same registers by another name."""
    ROWS: gl.constexpr = packed.shape[0]
    QUADS: gl.constexpr = packed.shape[1]
    alike = packed[:, :, None]
    quads: gl.constexpr = alike.type.layout
    alike, _ = gl.broadcast(alike, gl.zeros([ROWS, QUADS, 4], gl.int32, quads))
    alike = alike.reshape([ROWS, QUADS * 4])
    p = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [alike], dtype=gl.float8e4nv, is_pure=False, pack=4)
    return gl.convert_layout(p, layout, assert_trivial=True)
