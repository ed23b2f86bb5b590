"""Scores to weights in 16 bits, for keys down and queries across: 2^x packed at once, which keeps registers free."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_TOGETHER = 8  # scores of a thread that one block of instructions takes


def _instructions(dtype: str) -> str:
    """PTX: powers into registers of the block's own, then pairs of them into the results."""
    half = _TOGETHER // 2
    names = ", ".join(f"t{i}" for i in range(_TOGETHER))
    powers = " ".join(f"ex2.approx.ftz.f32 t{i}, ${half + i};" for i in range(_TOGETHER))
    pairs = " ".join(f"cvt.rn.{dtype}x2.f32 ${i}, t{2 * i + 1}, t{2 * i};" for i in range(half))
    return f"{{ .reg .f32 {names}; {powers} {pairs} }}"


_BFLOAT16 = gl.constexpr(_instructions("bf16"))
_FLOAT16 = gl.constexpr(_instructions("f16"))
_OPERANDS = gl.constexpr(",".join(["=r"] * (_TOGETHER // 2) + ["f"] * _TOGETHER))
_PACK = gl.constexpr(_TOGETHER)


@gluon.jit
def packed_powers(x, dtype: gl.constexpr):
    """2^x for a tile of float32 numbers, as bfloat16 or float16."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(_BFLOAT16, _OPERANDS, [x], dtype=gl.bfloat16, is_pure=False, pack=_PACK)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return gl.inline_asm_elementwise(_FLOAT16, _OPERANDS, [x], dtype=gl.float16, is_pure=False, pack=_PACK)


@gluon.jit
def hide_scores(x, diagonal, key, seqlen_k, window, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """x (keys down from `key` on, queries across) with -inf where hidden; `diagonal` is the first query's own key.

    Queries beyond the end need no look: their logsumexp is +inf.
    """
    layout: gl.constexpr = x.type.layout
    keys = key + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))[None, :]
    # A thread's columns are 8 g + 2 lane + (0 or 1): comparing 8 g + (0 or 1), known when compiling, with one number of
    # its row takes half the instructions.
    own = columns & ~6
    first = keys - diagonal - (columns & 6)
    keep = own >= first
    if not CAUSAL:
        keep = gl.broadcast(keys < seqlen_k, keep)[0]
    if WINDOW:
        keep = keep & (own < first + window)
        if not CAUSAL:
            keep = keep & (own > first - window)
    return gl.where(keep, x, float("-inf"))
