"""delta = rowsum(dout x out) of a warpgroup's 64 queries, in registers while their scores are multiplied.

FlashAttention-2 (Dao, 2023), algorithm 2, line 4.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def _whole_sectors(rows, head_dim):
    """Eight neighbouring numbers a load; a warp reads 64 bytes of eight rows, no two of which share a bank."""
    columns = [[0, 1 << bit] for bit in range(head_dim.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[*columns[:3], *columns[5:], [8, 0]],
        lane_bases=[*columns[3:5], [4, 0], [1, 0], [2, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[rows, head_dim],
    )


@gluon.jit
def load_out(out, first, seqlen_q, out_m, ROWS: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr):
    """Rows from `first` on, WIDTH columns of them, zeros beyond; the stride of rows is in eights of numbers."""
    layout: gl.constexpr = _whole_sectors(ROWS, HEAD_DIM)
    rows = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, layout))
    inside = (rows < seqlen_q)[:, None] & (columns < WIDTH)[None, :]
    return gl.load(out + (rows.to(gl.int64) * out_m * 8)[:, None] + columns[None, :], mask=inside, other=0.0)


@gluon.jit
def delta_of(out, dout_tile):
    """A number for each row; `dout_tile` is in shared memory."""
    dout = dout_tile.load(out.type.layout)
    return gl.sum(out.to(gl.float32) * dout.to(gl.float32), 1)


@gluon.jit
def store_rows(padded, base, rows, values, padded_q):
    """Numbers of a head's rows, for the kernel behind this one."""
    gl.store(padded + base + rows, values, mask=rows < padded_q)
