"""Even shares of ragged caches, computed on the device: every program takes the same number of key blocks (stream-K).

A tile is the work of one program without splits: the query rows of one sequence and one key head. The key blocks of all
tiles form one row, ordered by sequence, then key head, then position. Program `slot` takes the blocks from `slot *
chunk` to `(slot + 1) * chunk`, so it shares at most its first and its last tile with other programs. Only the lengths
are read, so a CUDA graph can be replayed with other lengths.

Equal payloads of key blocks are the idea of FlashMLA's scheduler. Stream-K: Osama et al., arXiv:2301.03598.
"""

import triton
import triton.language as tl

from .cache import SKIPPED


@triton.jit
def length_of(lengths_ptr, seq, capacity):
    """Return the length of a sequence, clamped to what the cache can hold."""
    return tl.minimum(tl.maximum(tl.load(lengths_ptr + seq), 0), capacity)


@triton.jit
def visible_blocks(length, seqlen_q, left, CONFIG: tl.constexpr):
    """Return the first key block that any query of a sequence sees, and the number of visible blocks, at least one.

    `left`: the number of keys before its own position that a query sees.
    """
    first = tl.zeros_like(length)
    if CONFIG.has_left:
        first = tl.maximum(length - seqlen_q - left, 0) // CONFIG.block_n
    return first, tl.maximum(tl.cdiv(length, CONFIG.block_n) - first, 1)


@triton.jit
def block_ends(lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left, CONFIG: tl.constexpr):
    """Return where the blocks of each sequence end in the row of blocks (CONFIG.batch,), and the length of that row.

    The third result is the number of blocks of a tile if it is the same for all tiles. Otherwise it is 0. The ends are
    valid only if it is 0. The fourth is that number if it is the same for all but the tiles of skipped sequences.
    """
    sequences = tl.arange(0, CONFIG.batch)
    lengths = tl.load(lengths_ptr + sequences, mask=sequences < batch, other=0)
    real = (sequences < batch) & (lengths != SKIPPED)
    lengths = tl.minimum(tl.maximum(lengths, 0), capacity)
    _, blocks = visible_blocks(lengths, seqlen_q, left, CONFIG)
    blocks = tl.where(real, blocks, 0)
    most = tl.max(blocks, 0)
    blocks = blocks * num_kv_heads
    total = tl.sum(blocks, 0)
    even = tl.where(total == most * (batch * num_kv_heads), most, 0)
    same = even
    if even == 0:
        same = tl.where(total == most * (tl.sum(real.to(tl.int32), 0) * num_kv_heads), most, 0)
        blocks = tl.cumsum(blocks, 0)
    return blocks, total, even, same


@triton.jit
def sequence_at(unit, ends, even, num_kv_heads):
    """Return the sequence of a block of the row, and the first block of it (`block_ends` has the arguments)."""
    if even > 0:
        seq = unit // (even * num_kv_heads)
        begin = seq * even * num_kv_heads
    else:
        passed = ends <= unit
        seq = tl.sum(passed.to(tl.int32), 0)
        begin = tl.max(tl.where(passed, ends, 0), 0)
    return seq, begin


@triton.jit
def begin_of(seq, ends, even, num_kv_heads, BATCH: tl.constexpr):
    """Return the first block of a sequence in the row (`block_ends` has the arguments)."""
    begin = seq * even * num_kv_heads
    if even == 0:
        begin = tl.sum(tl.where(tl.arange(0, BATCH) == seq - 1, ends, 0), 0)
    return begin


@triton.jit
def share_of(total, same, slots, least, NEAR: tl.constexpr):
    """Return the number of blocks of a program: at least `least`, because short splits cost more than they save.

    `same`: the number of blocks of a tile if it is the same for all tiles, else 0. A share that begins and ends with a
    tile, or divides a tile evenly, is used if it takes at most a tenth more blocks, or up to NEAR more if there are
    no more tiles than programs (tuning.aligned_share does the same for lengths that the host knows).
    """
    share = tl.maximum(tl.cdiv(total, slots), least)
    if same > 0:
        tiles = total // same
        aligned = tl.maximum(tl.cdiv(same, tl.maximum(slots // tiles, 1)), least)
        if tiles > slots:
            aligned = tl.cdiv(tiles, slots) * same
        if (aligned * 10 <= share * 11) | ((aligned <= share + NEAR) & (tiles <= slots)):
            share = aligned
    return share
