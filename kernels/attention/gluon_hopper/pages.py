"""Keys and values that lie in pages: a block of keys is loaded in parts, each of which lies in one page.

A page table has a row for each sequence, one behind the other; `first_k` of a sequence is where its keys would be if
every row were full. A tile of 128 columns in shared memory is one of 64 columns behind another, so each part is two
boxes of TMA, as it is to the hardware if a page has a whole block. TMA fills what is outside of all pages with zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .compat import reinterpret, tma_load

COLUMNS = gl.constexpr(64)  # of a box


@gluon.constexpr_function
def _rows_of_part(config):
    return min(config.page_size, config.block_n)


@gluon.jit
def pages_of_block(table, sequence, j, CONFIG: gl.constexpr):
    """Return the numbers of the pages of each part of a sequence's key block j; behind its end, that of its last."""
    rows: gl.constexpr = _rows_of_part(CONFIG)
    own = table + sequence.first_k // CONFIG.page_size
    last = gl.maximum(gl.cdiv(sequence.seqlen_k, CONFIG.page_size) - 1, 0)
    found = (gl.load(own + gl.minimum(j * CONFIG.block_n // CONFIG.page_size, last)),)
    for part in gl.static_range(1, CONFIG.block_n // rows):
        found = found + (gl.load(own + gl.minimum((j * CONFIG.block_n + part * rows) // CONFIG.page_size, last)),)
    return found


@gluon.jit
def load_pages(desc, pages, head, j, full, tiles, slot, CONFIG: gl.constexpr):
    """Load key block j, all parts of it, and have its barrier expect as much."""
    rows: gl.constexpr = _rows_of_part(CONFIG)
    parts: gl.constexpr = CONFIG.block_n // rows
    pieces: gl.constexpr = CONFIG.head_dim // COLUMNS
    boxes = reinterpret(tiles, tiles.dtype, [CONFIG.kv_slots * pieces * parts, 1, 1, rows, COLUMNS], desc.layout)
    row = j * CONFIG.block_n % CONFIG.page_size
    mbarrier.expect(full, pieces * parts * desc.block_type.nbytes)
    for piece in gl.static_range(pieces):
        for part in gl.static_range(parts):
            box = boxes.index((slot * pieces + piece) * parts + part)
            tma_load(desc, [pages[part], head, row, piece * COLUMNS], full, box)
