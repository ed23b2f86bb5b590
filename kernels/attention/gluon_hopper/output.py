"""Storing a consumer's rows of the output from its registers, which leaves the queries' slot to the next."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def _rows_of_lanes(width):
    """A layout of 64 rows for one warpgroup: lanes hold 8 neighbours of a row, and a warp the rows of its products."""
    columns = [[0, 1 << bit] for bit in range(width.bit_length() - 1)]
    lanes = [*columns[3:5], [1, 0], [2, 0], [4, 0]]
    registers = [*columns[:3], [8, 0], *columns[5:]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, width])


@gluon.jit
def store_rows(target, x, batch, h, row, seqlen_q):
    """64 rows of a head, from `row` on: 16 bytes a lane. `target` is an address and strides in eights of numbers."""
    out, out_b, out_h, out_m = target
    layout: gl.constexpr = _rows_of_lanes(x.shape[1])
    x = gl.convert_layout(x, layout)  # within a warp
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
    place = out + (batch.to(gl.int64) * out_b + h.to(gl.int64) * out_h) * 8
    place = place + (rows.to(gl.int64) * out_m)[:, None] * 8
    gl.store(place + columns[None, :], x, mask=(rows < seqlen_q)[:, None])
