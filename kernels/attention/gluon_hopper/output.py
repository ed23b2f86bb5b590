"""Storing a consumer's rows of the output and their logsumexps, or those of a part of the keys, to be joined later.

`target` is the output, its strides in eights of numbers, and room for parts: 64 rows a consumer and part, one after
another, and their logsumexps. Outputs are descriptors, or with `DIRECT` addresses.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernels.attention.gluon_hopper.shim import tma_store


@gluon.constexpr_function
def _rows_of_lanes(width):
    """A layout of 64 rows for one warpgroup: lanes hold 8 neighbours of a row, and a warp the rows of its products."""
    columns = [[0, 1 << bit] for bit in range(width.bit_length() - 1)]
    lanes = [*columns[3:5], [1, 0], [2, 0], [4, 0]]
    registers = [*columns[:3], [8, 0], *columns[5:]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, width])


@gluon.jit
def store_log_sums(consumer: gl.constexpr, target, lse, place, m_i, l_i, seqlen_q, ROWS: gl.constexpr,
                   BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Store the logsumexps; gives the inverse sums."""
    layout: gl.constexpr = gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16]))
    head, row, shared = place
    own = gl.arange(0, ROWS, layout)
    rows = row + own
    l_i = gl.convert_layout(gl.sum(l_i, 1), layout)
    m_i = gl.convert_layout(gl.max(m_i, 1), layout)
    log_sum = gl.where(l_i == 0.0, float("inf"), m_i + gl.log2(l_i))  # +inf: no key was seen, no weight later
    first = head.to(gl.int64) * seqlen_q
    if SHARED:
        if shared < 0:
            gl.store(lse + first + rows, log_sum, mask=rows < seqlen_q)
        else:
            gl.store(target[5] + (shared * CONSUMERS + consumer) * ROWS + own, log_sum)
    else:
        gl.store(lse + first + rows, log_sum, mask=rows < seqlen_q)
    return 1.0 / gl.where(l_i == 0.0, 1.0, l_i)


@gluon.jit
def store_output(consumer: gl.constexpr, target, place, slot, x, num_heads, seqlen_q, CONSUMERS: gl.constexpr,
                 DIRECT: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Store the rows x, by lanes or through the slot of the queries, which have been read."""
    out, out_b, out_h, out_m, parts, part_log_sums, marks = target
    head, row, shared = place
    batch = head // num_heads
    head -= batch * num_heads
    if DIRECT:
        address = out + (batch.to(gl.int64) * out_b + head.to(gl.int64) * out_h) * 8
        if SHARED:  # noqa: SIM102 - decided at compile time
            if shared >= 0:
                address = parts
                row = (shared * CONSUMERS + consumer) * x.shape[0]
                out_m = gl.to_tensor(x.shape[1] // 8)
                seqlen_q = row + x.shape[0]
        _store_rows(address, out_m, row, seqlen_q, x)
    else:
        slot.reshape([x.shape[0], x.shape[1]]).store(x)
        fence_async_shared()
        if SHARED:
            if shared < 0:
                tma_store(out, [batch, head, row, 0], slot)
            else:
                tma_store(parts, [0, 0, (shared * CONSUMERS + consumer) * x.shape[0], 0], slot)
        else:
            tma_store(out, [batch, head, row, 0], slot)


@gluon.jit
def _store_rows(address, stride, row, end, x):
    """Rows from `row` on and before `end`: 16 bytes a lane, which leaves the slot of the queries to the next."""
    layout: gl.constexpr = _rows_of_lanes(x.shape[1])
    x = gl.convert_layout(x, layout)  # within a warp
    rows = row + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
    address = address + (rows.to(gl.int64) * stride)[:, None] * 8
    gl.store(address + columns[None, :], x, mask=(rows < end)[:, None])
