"""The warp-specialised forward: one producer warpgroup feeds two to four consumers of 64 query rows each.

The structure is FlashAttention-3's (arXiv 2407.08608): persistent programs, and consumers that take turns on the tensor
cores. Consumers: consumer.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.gluon_hopper.chain import await_the_kernel_before
from kernels.attention.gluon_hopper.consumer import consume
from kernels.attention.gluon_hopper.loading import load_tiles
from kernels.attention.gluon_hopper.marks import any_mark, clear_mark
from kernels.attention.gluon_hopper.own_tiles import fetch_agenda
from kernels.attention.gluon_hopper.tuning import ENTRY

_ENTRY = gl.constexpr(ENTRY)


@gluon.jit(do_not_specialize=["entries", "n_tiles", "n_m", "num_heads", "n_heads", "group_size", "heads_together",
                              "seqlen_q", "seqlen_k", "window", "out_b", "out_h", "out_m"])  # fmt: skip
def forward_kernel(q_desc, k_desc, v_desc, out, lse, parts, part_log_sums, marks, agenda, entries, n_tiles, n_m,
                   num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window, scale, out_b, out_h,
                   out_m, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                   Q_SLOTS: gl.constexpr, KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
                   TURNS: gl.constexpr, MASKED: gl.constexpr, REGISTERS: gl.constexpr,
                   DIRECT: gl.constexpr, HOLD: gl.constexpr, BY_LANE: gl.constexpr, BY_SUM: gl.constexpr,
                   UNSEEN: gl.constexpr, BY_WARP: gl.constexpr, DEALT: gl.constexpr, SHARED: gl.constexpr,
                   ANEW: gl.constexpr):  # fmt: skip
    """Attention of all query tiles; `scale` is softmax_scale x log2(e).

    `out` and `parts` are descriptors, or with `DIRECT` addresses; `out_b`, `out_h` and `out_m` are strides in eights.
    With `UNSEEN`, programs leave marks where sums have outgrown float32; with `ANEW`, all is done only if one did.
    With `SHARED`, programs share the keys of some tiles (agenda.py), and `parts` takes what each has of them.
    """
    if UNSEEN:
        clear_mark(marks)
    if ANEW:  # noqa: SIM102 - decided at compile time
        await_the_kernel_before()
        if not any_mark(marks):
            return
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [CONSUMERS * Q_SLOTS, 1, 1, ROWS, HEAD_DIM], q_desc.layout)
    k_s = gl.allocate_shared_memory(dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout)
    v_s = gl.allocate_shared_memory(dtype, [KV_SLOTS, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS * Q_SLOTS, 1], bar)
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS * Q_SLOTS, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    k_empty = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    v_empty = gl.allocate_shared_memory(gl.int64, [KV_SLOTS, 1], bar)
    for i in gl.static_range(CONSUMERS * Q_SLOTS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(KV_SLOTS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    memory = (q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    if DEALT:
        agenda += gl.program_id(0) * entries * _ENTRY
        fetch_agenda(agenda, entries)
    sizes = (agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window)
    target = (out, out_b, out_h, out_m, parts, part_log_sums, marks)
    # Constants must stand in the call itself: a tuple bound to a name turns them into tensors.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
    elif CONSUMERS == 3:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (load_tiles, (q_desc, k_desc, v_desc, memory, sizes, ROWS, BLOCK_N, CONSUMERS, Q_SLOTS, KV_SLOTS, CAUSAL,
                         WINDOW, TURNS, BY_WARP, DEALT, SHARED)),
            (consume, (0, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (1, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (2, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
            (consume, (3, target, lse, memory, sizes, scale, ROWS, BLOCK_N, HEAD_DIM, CONSUMERS, Q_SLOTS, KV_SLOTS,
                         CAUSAL, WINDOW, TURNS, MASKED, DIRECT, HOLD, BY_LANE, BY_SUM, UNSEEN, BY_WARP, DEALT, SHARED)),
        ], [4, 4, 4, 4], [REGISTERS, REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
