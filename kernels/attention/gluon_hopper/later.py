"""delta of a later unit, by consumers that wait for their first keys and queries.

delta = rowsum(dout x out) is bound by memory, of which the backward kernel needs little in long sequences. So
prepare_kernel has only the first `lag` units of ring.py; the programs of unit u share out the rows of unit u + lag. A
program counts itself in afterwards: the full counter of unit u says that unit u + lag has its delta, too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS = gl.constexpr(64)  # that a consumer takes at a time; tiles of queries are multiples
_LAYOUT = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))


@gluon.jit
def _read(number, exists, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, _LAYOUT))[None, :]
    head = (unit + lag) * group_size + number * ROWS // padded_q
    rows = number * ROWS % padded_q + gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
    batch, h = (head // num_heads).to(gl.int64), (head % num_heads).to(gl.int64)
    down = rows[:, None].to(gl.int64)
    mask = (rows < seqlen_q)[:, None] & exists
    if WIDTH < HEAD_DIM:
        mask = mask & (columns < WIDTH)
    place = out + (batch * out_b + h * out_h) + down * out_m + columns
    o = gl.load(place, mask, 0.0, eviction_policy="evict_first")
    do = gl.load(dout + (batch * do_b + h * do_h) + down * do_m + columns, mask, 0.0)
    return o, do


@gluon.jit
def read_rows(consumer: gl.constexpr, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    """The first rows of out and dout that this consumer has of the unit `lag` later; zeros if it has none.

    WIDTH is the tensors' own head_dim.
    """
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    number = 2 * gl.program_id(0) + consumer
    exists = (unit + lag < gl.num_programs(1) * gl.num_programs(2)) & (number < group_size * (padded_q // ROWS))
    return _read(number, exists, later, unit, sizes, HEAD_DIM, WIDTH)


@gluon.jit
def write_delta(consumer: gl.constexpr, o, do, later, unit, sizes, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    """delta of these rows, and of all others that this consumer has."""
    out, dout, delta, written, lag, out_b, out_h, out_m, do_b, do_h, do_m = later
    num_heads, group_size, seqlen_q, seqlen_k, padded_q, n_m, window = sizes
    first = 2 * gl.program_id(0) + consumer
    if unit + lag < gl.num_programs(1) * gl.num_programs(2):
        for number in range(first, group_size * (padded_q // ROWS), 2 * gl.num_programs(0)):
            if number > first:
                o, do = _read(number, True, later, unit, sizes, HEAD_DIM, WIDTH)
            line = (unit + lag) * group_size * padded_q + number * ROWS
            line += gl.arange(0, ROWS, gl.SliceLayout(1, _LAYOUT))
            gl.store(delta + line, gl.sum(o.to(gl.float32) * do.to(gl.float32), 1))
    mbarrier.arrive(written, count=1)
