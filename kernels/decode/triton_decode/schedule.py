"""Even shares of ragged caches, found on the device: every program takes as many key blocks as any other (stream-K).

A tile is what one program would compute alone: the query rows of one sequence and one key head. The key blocks of all
tiles stand in one row, by sequence, then key head, then position, and program `slot` takes those from `slot * chunk` to
`(slot + 1) * chunk`. It so meets at most one tile that another program began and one that another will end. Nothing
but the lengths is read, so a CUDA graph may replay with others.

The idea of equal payloads of key blocks is that of FlashMLA's scheduler; stream-K is Osama et al., arXiv:2301.03598.
"""

import triton
import triton.language as tl


@triton.jit
def visible_blocks(length, seqlen_q, left, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr):
    """Return the first key block that any query of a sequence sees, and their number: at least one, even of no key.

    `left`: how many keys before its own a query sees.
    """
    first = tl.zeros_like(length)
    if HAS_LEFT:
        first = tl.maximum(length - seqlen_q - left, 0) // BLOCK_N
    return first, tl.maximum(tl.cdiv(length, BLOCK_N) - first, 1)


@triton.jit
def block_ends(
    lengths_ptr, batch, num_kv_heads, capacity, seqlen_q, left,
    BATCH: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
):  # fmt: skip
    """Return where each sequence's blocks of all its key heads end in the row of blocks (BATCH,), and its length.

    Last, the blocks of a tile if all have as many, else 0; ends are then not those.
    """
    sequences = tl.arange(0, BATCH)
    lengths = tl.load(lengths_ptr + sequences, mask=sequences < batch, other=0)
    lengths = tl.minimum(tl.maximum(lengths, 0), capacity)
    _, blocks = visible_blocks(lengths, seqlen_q, left, BLOCK_N, HAS_LEFT)
    blocks = tl.where(sequences < batch, blocks, 0)
    most = tl.max(blocks, 0)
    blocks = blocks * num_kv_heads
    total = tl.sum(blocks, 0)
    even = tl.where(total == most * (batch * num_kv_heads), most, 0)
    if even == 0:
        blocks = tl.cumsum(blocks, 0)
    return blocks, total, even


@triton.jit
def sequence_at(unit, ends, even, num_kv_heads):
    """Return the sequence of a block of the row, and where that sequence begins (arguments of block_ends)."""
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
    """Return where a sequence's blocks begin in the row (arguments of block_ends)."""
    begin = seq * even * num_kv_heads
    if even == 0:
        begin = tl.sum(tl.where(tl.arange(0, BATCH) == seq - 1, ends, 0), 0)
    return begin


@triton.jit
def share_of(total, even, tiles, slots, least):
    """Return the blocks of a program: at least `least`, for splits of a short cache cost more than they save.

    `even`: blocks of every tile if all have as many, else 0. Shares that begin and end with tiles, or divide them
    evenly, are worth a tenth of the programs (plan.aligned_share does this for lengths known to the host).
    """
    share = tl.maximum(tl.cdiv(total, slots), least)
    if even > 0:
        aligned = tl.maximum(tl.cdiv(even, tl.maximum(slots // tiles, 1)), least)
        if tiles > slots:
            aligned = tl.cdiv(tiles, slots) * even
        if aligned * 10 <= share * 11:
            share = aligned
    return share
