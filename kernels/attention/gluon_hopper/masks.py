"""Find the keys that a query sees, by tile and by element, and bend scores by a softcap or slopes.

A causal mask is aligned bottom-right. `window` is the number of keys that a query sees up to its own key. Without a
causal mask it is two numbers: the lower half of its 64 bits is that one, and the upper half the number of keys from its
own on (`configs.window_of`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _widths(window, CAUSAL: gl.constexpr):
    """Return how many keys a query sees up to its own, and from its own on."""
    if CAUSAL:
        return window, gl.to_tensor(1)
    else:  # noqa: RET505 - the compiler drops one of two branches, not what follows a return
        return window.to(gl.int32), (window >> 32).to(gl.int32)


@gluon.jit
def key_blocks(m, sizes, TILE: gl.constexpr, CONFIG: gl.constexpr):
    """Return the key blocks [low, high) that the query tile sees, as (low, left, right, high).

    Those in [left, right) need no mask.

    Causal, every row sees a key at or right of block `right`: where the unmasked blocks begin, all have a maximum.
    """
    BLOCK_N: gl.constexpr = CONFIG.block_n
    first = m * TILE + sizes.seqlen_k - sizes.seqlen_q  # the key at the diagonal of the first row
    last = first + TILE - 1
    low = gl.to_tensor(0)
    high = gl.cdiv(sizes.seqlen_k, BLOCK_N)
    right = sizes.seqlen_k // BLOCK_N
    if CONFIG.causal or CONFIG.has_window:
        window, ahead = _widths(sizes.window, CONFIG.causal)
        high = gl.minimum(high, gl.cdiv(gl.maximum(last + ahead, 0), BLOCK_N))
        right = gl.minimum(right, gl.maximum(first + ahead - 1, 0) // BLOCK_N)
    left = low
    if CONFIG.has_window:
        low = gl.maximum(first - window + 1, 0) // BLOCK_N
        left = gl.cdiv(gl.maximum(last - window + 1, 0), BLOCK_N)
    high = gl.maximum(high, low + 1)
    right = gl.maximum(gl.minimum(right, high - 1), low)
    return low, gl.minimum(gl.maximum(left, low), right), right, high


@gluon.jit
def whole_windows(m, sequence, CONFIG: gl.constexpr):
    """Return whether the windows of all rows of a query tile end within the blocks of keys."""
    window, ahead = _widths(sequence.window, CONFIG.causal)
    rows: gl.constexpr = CONFIG.rows * CONFIG.consumers
    first = m * rows + sequence.seqlen_k - sequence.seqlen_q
    behind = gl.cdiv(sequence.seqlen_k, CONFIG.block_n) * CONFIG.block_n
    return (first >= window - 1) & (first + rows - 1 + ahead <= behind)


@gluon.jit
def query_blocks(n0, n_m, sizes, CONFIG: gl.constexpr):
    """Return the query blocks [low, high) that see keys n0 .. n0 + block_n, as (low, left, right, high).

    Those in [left, right) need no mask.
    """
    BLOCK_M: gl.constexpr = CONFIG.block_m
    BLOCK_N: gl.constexpr = CONFIG.block_n
    shift = sizes.seqlen_k - sizes.seqlen_q
    low = gl.to_tensor(0)
    high = n_m
    left = low
    right = n_m
    if CONFIG.causal or CONFIG.has_window:
        window, ahead = _widths(sizes.window, CONFIG.causal)
        low = gl.maximum(n0 - ahead + 1 - shift, 0) // BLOCK_M
        left = gl.cdiv(gl.maximum(n0 + BLOCK_N - ahead - shift, 0), BLOCK_M)
    if CONFIG.has_window:
        high = gl.minimum(high, gl.cdiv(gl.maximum(n0 + BLOCK_N - 1 + window - shift, 0), BLOCK_M))
        right = gl.minimum(right, gl.maximum(n0 + window - shift, 0) // BLOCK_M)
    high = gl.maximum(high, low)
    left = gl.minimum(gl.maximum(left, low), high)
    if n0 + BLOCK_N > sizes.seqlen_k:
        left = high
    return low, left, gl.minimum(gl.maximum(right, left), high), high


@gluon.jit
def hide_keys(x, value: gl.constexpr, key, diagonal, sizes, CONFIG: gl.constexpr):
    """Put `value` in x where a key is hidden: queries down, keys across from `key` on.

    `diagonal` is the key on the first row's diagonal.
    """
    layout: gl.constexpr = x.type.layout
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))[None, :]
    if CONFIG.causal:
        rows = diagonal - key + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))[:, None]
        bits = _low_bits(rows, columns, x)
        if CONFIG.has_window:
            bits = bits & ~_low_bits(rows - sizes.window, columns, x)
        keep = ((bits >> (2 * (columns >> 3) + (columns & 1))) & 1) != 0
    else:
        rows = diagonal + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))[:, None]
        keys = key + columns
        keep = keys < sizes.seqlen_k
        if CONFIG.has_window:
            window, ahead = _widths(sizes.window, CONFIG.causal)
            keep = keep & (rows - keys < window)
            keep = keep & (keys - rows < ahead)
    return gl.where(keep, x, value)


@gluon.jit
def _low_bits(rows, columns, x):
    """Return a bit for each of a thread's columns <= its row, which holds the columns 8 g + 2 lane + (0 or 1) of x.

    Keys beyond the end need no look: they lie right of every row's diagonal.

    Those that a row sees are the lowest bits of one number, and in a window lie above the lowest bits of another.
    Comparing each pair takes 250 instructions more in a tile's first block at head_dim 64: ptxas compares before the
    scores are there, and keeps the answers in registers.
    """
    beyond = rows - (columns & 6)
    seen = gl.minimum(gl.maximum(2 * (beyond >> 3) + gl.minimum(beyond & 7, 1) + 1, 0), 2 * (x.shape[1] // 8))
    return (gl.full(x.shape, 1, gl.int64, x.type.layout) << seen.to(gl.int64)).to(gl.int32) - 1


@gluon.jit
def hide_queries(x, value: gl.constexpr, diagonal, key, sizes, CONFIG: gl.constexpr):
    """Put `value` in x where a key is hidden: keys down from `key` on, queries across.

    `diagonal` is the key on the first query's diagonal. Queries beyond the end need no mask: their logsumexp is +inf.
    """
    layout: gl.constexpr = x.type.layout
    keys = key + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))[None, :]
    # A thread's columns are 8 g + 2 lane + (0 or 1): comparing 8 g + (0 or 1), known when compiling, with one number of
    # its row takes half the instructions.
    own = columns & ~6
    first = keys - diagonal - (columns & 6)
    keep = own >= first
    if not CONFIG.causal:
        keep = gl.broadcast(keys < sizes.seqlen_k, keep)[0]
    if CONFIG.has_window:
        window, ahead = _widths(sizes.window, CONFIG.causal)
        keep = keep & (own < first + window)
        if not CONFIG.causal:
            keep = keep & (own > first - ahead)
    return gl.where(keep, x, value)


@gluon.jit
def capped(x, BEND: gl.constexpr):
    """Return tanh(BEND x) of products q k, by an instruction that is off by 2^-11 at most; without BEND x."""
    if BEND > 0:
        x = gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x * BEND], gl.float32, True, 1)
    return x


@gluon.jit
def less_distance(x, slope, distance, KEYS_DOWN: gl.constexpr, CAUSAL: gl.constexpr):
    """Return x - slope x the distance of query and key; `distance`: of the first of both, positive for earlier keys."""
    layout: gl.constexpr = x.type.layout
    down = gl.arange(0, x.shape[0], gl.SliceLayout(1, layout)).to(gl.float32)[:, None]
    across = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout)).to(gl.float32)[None, :]
    first = distance.to(gl.float32)
    far = (first - down) + across if KEYS_DOWN else (first + down) - across
    return x - slope * (far if CAUSAL else gl.abs(far))
