"""P in 8 bits: packed in registers, four of a row to a 32-bit number, and as a factor of the tensor cores' products.

Products are asynchronous and added up by the tensor cores alone; kernels/DESIGN.md says why for both.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma_accumulator

from ..gluon_hopper.compat import reinterpret

_PACK = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
    " mov.b32 $0, {low, high}; }"
)

_EXPONENTIATE = gl.constexpr(
    "{ .reg .b16 low, high; .reg .f32 a, b, c, d; ex2.approx.ftz.f32 a, $2; ex2.approx.ftz.f32 b, $3;"
    " ex2.approx.ftz.f32 c, $4; ex2.approx.ftz.f32 d, $5;"
    " cvt.rn.satfinite.e4m3x2.f32 low, b, a; cvt.rn.satfinite.e4m3x2.f32 high, d, c;"
    " mov.b32 $0, {low, high}; add.f32 a, a, b; add.f32 c, c, d; add.f32 $1, a, c; }"
)


@gluon.constexpr_function
def packed_layout(keys):
    """Return the layout of 64 rows of keys / 4 packed numbers, as that of a warpgroup's first factor."""
    registers = [[0, 0, 1], [0, 0, 2], [8, 0, 0]]
    registers += [[0, place, 0] for place in (4, 8, 16, 32) if 4 * place < keys]
    lanes, warps = [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]], [[16, 0, 0], [32, 0, 0]]
    return gl.SliceLayout(2, gl.DistributedLinearLayout(registers, lanes, warps, [], [64, keys // 4, 4]))


@gluon.jit
def _by_four(x):
    """Split the four numbers of each packed one."""
    ROWS: gl.constexpr = x.shape[0]
    KEYS: gl.constexpr = x.shape[1]
    x = x.reshape([ROWS, KEYS // 32, 2, 2, 4, 2]).permute((0, 1, 2, 4, 3, 5)).reshape([ROWS, KEYS // 4, 2, 2])
    even, odd = gl.split(x)
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return first, second, third, fourth


@gluon.jit
def pack(p):
    """Round P of 64 rows to e4m3 and pack it; no number changes its thread.

    Of 32 keys a thread holds 8 g + 2 c + e (c its place in a row of four) where an 8-bit factor has 16 h + 4 c + 2 f
    + e; with g = 2 h + f that is another order of the keys, and the values are stored in it (quantising.py).
    """
    KEYS: gl.constexpr = p.shape[1]
    packed = gl.inline_asm_elementwise(_PACK, "=r,f,f,f,f", _by_four(p), dtype=gl.int32, is_pure=True, pack=1)
    return gl.convert_layout(packed, packed_layout(KEYS), assert_trivial=True)


@gluon.jit
def packed_powers(x):
    """Compute 2^x of 64 rows, packed as `pack` does it, and the sums of each of the four lanes that share a row."""
    ROWS: gl.constexpr = x.shape[0]
    KEYS: gl.constexpr = x.shape[1]
    packed, sums = gl.inline_asm_elementwise(
        _EXPONENTIATE, "=r,=f,f,f,f,f", _by_four(x), dtype=(gl.int32, gl.float32), is_pure=True, pack=1
    )
    sums = gl.sum(sums.reshape([ROWS, KEYS // 16, 4]), 1)
    return gl.convert_layout(packed, packed_layout(KEYS), assert_trivial=True), sums


@gluon.jit
def put(packed, memory):
    """Store packed P in shared memory, a byte a number, where products take it."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    reinterpret(memory, gl.int32, packed.shape, layout).store(packed)
    fence_async_shared()


@gluon.jit
def unpack(packed, layout: gl.constexpr):
    """Reinterpret packed P as the first factor of a product, in `layout`: the registers stay."""
    ROWS: gl.constexpr = packed.shape[0]
    QUADS: gl.constexpr = packed.shape[1]
    quad = packed[:, :, None]
    quads: gl.constexpr = quad.type.layout
    quad, _ = gl.broadcast(quad, gl.zeros([ROWS, QUADS, 4], gl.int32, quads))
    quad = quad.reshape([ROWS, QUADS * 4])
    p = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [quad], dtype=gl.float8e4nv, is_pure=False, pack=4)
    return gl.convert_layout(p, layout, assert_trivial=True)


_UNCORRECTED = 2**30  # more additions than any product has


@builtin
def begin_product(a, b, acc, use_acc=True, _semantic=None):
    """Begin acc + a b (or a b) on the tensor cores: a in registers or shared memory, b in shared memory, both e4m3."""
    use_acc = _semantic.to_tensor(use_acc)
    precision = _semantic._str_to_dot_input_precision(_semantic.builder.options.default_dot_input_precision)
    handle = _semantic.builder.create_warpgroup_mma(
        a.handle, b.handle, acc.handle, use_acc.handle, precision, _UNCORRECTED, True
    )
    return warpgroup_mma_accumulator(handle, acc.type)


@gluon.jit
def begin_scores(q, k_s, slot, CONFIG: gl.constexpr):
    """Begin a product of queries and the keys of a slot."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CONFIG.block_n, 32])
    k_t = k_s.index(slot).reshape([CONFIG.block_n, CONFIG.head_dim]).permute((1, 0))
    zero = gl.zeros([CONFIG.rows, CONFIG.block_n], gl.float32, layout)
    return begin_product(q, k_t, zero, use_acc=False)


@gluon.jit
def begin_values(p, v_s, slot, out, CONFIG: gl.constexpr):
    """Begin to add the product of P and the values of a slot to `out`."""
    values = v_s.index(slot).reshape([CONFIG.head_dim, CONFIG.block_n]).permute((1, 0))
    return begin_product(p, values, out)
