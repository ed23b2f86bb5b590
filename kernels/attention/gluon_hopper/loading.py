"""The forward's producer: a program's query tiles, and for each the blocks of keys and values, from the right."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.gluon_hopper.kv_slots import await_keys_slot, await_values_slot
from kernels.attention.gluon_hopper.masks import key_blocks
from kernels.attention.gluon_hopper.own_tiles import own_rounds, own_tile, rows_of, shared_blocks
from kernels.attention.gluon_hopper.shim import tma_load


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, memory, sizes,
               ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, Q_SLOTS: gl.constexpr,
               KV_SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, TURNS: gl.constexpr,
               BY_WARP: gl.constexpr, DEALT: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Load what the consumers of this program need, as slots become free."""
    q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    agenda, n_tiles, n_m, num_heads, n_heads, group_size, heads_together, seqlen_q, seqlen_k, window = sizes
    count = 0
    for turn in range(own_rounds(sizes, DEALT)):
        m, head = own_tile(turn, sizes, DEALT, CAUSAL and not WINDOW)
        batch = head // num_heads
        h = head - batch * num_heads
        h_kv = h // group_size
        low, left, right, high = key_blocks(m, seqlen_q, seqlen_k, window, ROWS * CONSUMERS, BLOCK_N, CAUSAL, WINDOW)
        if SHARED:
            shared, low, left, right, high = shared_blocks(turn, sizes, BLOCK_N)
        q_slot = turn % Q_SLOTS
        q_phase = (turn // Q_SLOTS) & 1
        for c in gl.static_range(CONSUMERS):
            q_bar = q_full.index(c * Q_SLOTS + q_slot)
            mbarrier.wait(q_empty.index(c * Q_SLOTS + q_slot), q_phase ^ 1)
            mbarrier.expect(q_bar, q_desc.block_type.nbytes)
            row = (m * CONSUMERS + rows_of(c, turn, CONSUMERS, CAUSAL, WINDOW, TURNS)) * ROWS
            tma_load(q_desc, [batch, h, row, 0], q_bar, q_s.index(c * Q_SLOTS + q_slot))
        for i in range(low, high):
            j = high - 1 - (i - low)
            slot = count % KV_SLOTS
            await_keys_slot(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [batch, h_kv, j * BLOCK_N, 0], k_full.index(slot), k_s.index(slot))
            await_values_slot(count, memory, CONSUMERS, KV_SLOTS, BY_WARP)
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            tma_load(v_desc, [batch, h_kv, j * BLOCK_N, 0], v_full.index(slot), v_s.index(slot))
            count += 1
