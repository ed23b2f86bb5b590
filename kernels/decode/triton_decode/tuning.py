"""The tiles of the split-KV kernel, by chip, format of the cache, rows of a tile and head_dim.

The rows of "sm_90" were tuned on an H200 unless a comment says otherwise. The other rows are estimates: they fit into
shared memory and do not spill.
"""

from __future__ import annotations

from dataclasses import dataclass

# A block's opt-in shared memory by compute capability (CUDA C++ Programming Guide, table of technical specifications).
SHARED_MEMORY = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
CHIPS = ("sm_80", "sm_86", "sm_90")
CACHES = ("half", "e4m3", "float32")
BLOCK_DIMS = (16, 32, 64, 128, 256, 512)  # 512: a latent cache
ROWS = (16, 32, 64, 128)  # 128: more than one tile of 64, or one of 128


@dataclass(frozen=True)
class DecodeTile:
    """The shape of a program and the number of programs."""

    block_n: int  # keys of a step
    num_warps: int
    num_stages: int
    per_sm: int = 2  # programs on a multiprocessor
    least_keys: int = 128  # fewest keys of a share
    rows: int = 64  # most rows of a tile; more rows are several tiles
    least_rows: int = 16
    tickets: bool | None = None  # whether programs combine parts, rather than a second kernel; None: decided by size
    form: str = "triton"  # or "gluon": the kernel of latent attention on Hopper


_Row = dict[int, DecodeTile]  # most rows of a tile -> tile

_HALF: dict[str, dict[int, _Row]] = {
    "sm_90": {
        16: {16: DecodeTile(128, 4, 3), 128: DecodeTile(64, 4, 3)},  # head_dim 16 and 32: not swept
        32: {16: DecodeTile(128, 4, 3), 128: DecodeTile(64, 4, 3)},
        64: {16: DecodeTile(128, 4, 3), 128: DecodeTile(64, 4, 3)},
        128: {16: DecodeTile(128, 4, 2), 32: DecodeTile(64, 4, 3), 64: DecodeTile(32, 4, 4), 128: DecodeTile(64, 4, 3)},
        256: {64: DecodeTile(64, 8, 3, 1), 128: DecodeTile(32, 8, 3, 1)},  # more than 16 rows: not swept
        512: {
            16: DecodeTile(32, 4, 3, tickets=False),
            32: DecodeTile(32, 8, 3, 1, rows=32, tickets=False),
            128: DecodeTile(64, 8, 2, 1, tickets=False),
        },
    },
    "sm_80": {
        16: {128: DecodeTile(64, 4, 3)},
        32: {128: DecodeTile(64, 4, 3)},
        64: {128: DecodeTile(64, 4, 3)},
        128: {16: DecodeTile(64, 4, 3), 128: DecodeTile(32, 4, 3)},
        256: {128: DecodeTile(32, 8, 2, 1)},
        512: {16: DecodeTile(32, 8, 2, 1), 128: DecodeTile(16, 8, 3, 1, rows=32)},
    },
    "sm_86": {
        16: {128: DecodeTile(64, 4, 3)},
        32: {128: DecodeTile(64, 4, 3)},
        64: {128: DecodeTile(64, 4, 2)},
        128: {16: DecodeTile(64, 4, 2), 128: DecodeTile(32, 4, 2)},
        256: {128: DecodeTile(16, 8, 2, 1)},
        512: {128: DecodeTile(16, 8, 2, 1, rows=16)},
    },
}
# How a request fills the GPU. "many": many tiles. "brief": many tiles with few keys. "whole": about one tile for each
# multiprocessor, with a moderate number of keys. "whole_brief": the same with few keys. "few": tiles that many programs
# share. "short": few tiles with few keys. "shortest": short even if a tile had 16 rows. "single": short, for callers
# that avoid a second launch.
SPREADS = ("many", "brief", "whole", "whole_brief", "few", "short", "shortest", "single")
_FEW_TILES = SPREADS[4:]
_FEW: dict[int, _Row] = {
    64: {16: DecodeTile(128, 4, 4, 1, tickets=False)},
    128: {
        16: DecodeTile(128, 8, 3, 1),
        64: DecodeTile(64, 4, 3, 1, tickets=False),
        128: DecodeTile(64, 4, 3, 2, 512, tickets=False),
    },
    256: {16: DecodeTile(32, 4, 4, 1, 64, tickets=False)},
}
_SHORT: _Row = {
    64: DecodeTile(64, 4, 3, 1, tickets=False),
    128: DecodeTile(64, 4, 3, 2, 256, tickets=False),
}
_SHORTEST: _Row = {**_SHORT, 128: DecodeTile(128, 4, 2, 1, rows=16, tickets=False)}
_SINGLE: dict[int, _Row] = {
    64: {16: DecodeTile(128, 4, 4, 1, tickets=True)},
    128: {16: DecodeTile(128, 8, 3, 1, tickets=True)},
    256: {16: DecodeTile(64, 8, 3, 1, tickets=True)},
}
_HALF_SPREAD: dict[str, dict[int, _Row]] = {
    "brief": {64: {16: DecodeTile(64, 4, 2, 4)}, 128: {16: DecodeTile(32, 4, 3, 4)}},
    "whole": {64: {16: DecodeTile(128, 4, 4, 1)}, 128: {16: DecodeTile(128, 8, 3, 1)}},
    "whole_brief": {64: {16: DecodeTile(128, 4, 4, 1)}, 128: {16: DecodeTile(64, 4, 3, 1)}},
    "few": _FEW,
    "short": {**_FEW, 128: _SHORT},
    "shortest": {**_FEW, 128: _SHORTEST},
    "single": _SINGLE,
}
# head_dim 128, for pages of fewer than 128 keys, and for all pages if tiles are few; two stages prefetch the page table
_HALF_PAGED: _Row = {16: DecodeTile(64, 4, 5)}
_HALF_PAGED_FEW: _Row = {16: DecodeTile(32, 4, 6, 2, tickets=False)}
_LONGEST_STEP = 128  # keys
_E4M3: dict[str, dict[int, _Row]] = {
    "sm_90": {
        16: {128: DecodeTile(128, 4, 3)},
        32: {128: DecodeTile(128, 4, 3)},
        64: {16: DecodeTile(128, 4, 3, tickets=False), 128: DecodeTile(64, 4, 3)},
        128: {16: DecodeTile(128, 4, 3, tickets=False), 128: DecodeTile(64, 8, 3, 1)},
        256: {16: DecodeTile(64, 8, 3, tickets=False), 128: DecodeTile(32, 8, 3, 1)},
    },
    "sm_80": {
        dim: {128: DecodeTile(64 if dim < 256 else 32, 4 if dim < 256 else 8, 2, 1)} for dim in (16, 32, 64, 128, 256)
    },
    "sm_86": {
        dim: {128: DecodeTile(64 if dim < 256 else 16, 4 if dim < 256 else 8, 2, 1)} for dim in (16, 32, 64, 128, 256)
    },
}
_E4M3_FEW: dict[int, _Row] = {128: {16: DecodeTile(128, 8, 4, 1)}}
_E4M3_SPREAD: dict[str, dict[int, _Row]] = {**dict.fromkeys(SPREADS[1:4], {}), **dict.fromkeys(_FEW_TILES, _E4M3_FEW)}


def tile(chip: str, cache: str, rows: int, block_d: int, *, spread: str = "many", page: int = 0) -> DecodeTile:
    """Return the tile for `rows` rows (padded) of head_dim (block_d, padded) over a cache.

    spread: a name of SPREADS; page: keys of a page, 0 for a contiguous cache.
    """
    if cache == "float32":
        return DecodeTile(16, 4, 2, 2 if block_d <= 64 else 1, rows=16 if block_d > 64 else 32)
    row = (_HALF if cache == "half" else _E4M3)[chip][block_d]
    if chip == "sm_90":
        special = None
        if spread != "many":
            special = (_HALF_SPREAD if cache == "half" else _E4M3_SPREAD)[spread].get(block_d)
        if page and cache == "half" and block_d == 128 and rows <= 16:
            if spread in _FEW_TILES:
                special = _HALF_PAGED_FEW
            elif page < _LONGEST_STEP:
                special = _HALF_PAGED
        if special and _pick(special, rows):
            return _pick(special, rows)
    return _pick(row, rows)


def every_tile(chip: str) -> list[tuple[str, int, int, bool, DecodeTile]]:
    """Return cache, rows, block_d, whether paged, and tile, for all results of tile() on a chip."""
    found = []
    for cache in CACHES:
        for block_d in BLOCK_DIMS:
            if block_d == 512 and cache == "e4m3":
                continue
            for rows in ROWS:
                tiles = {
                    (page > 0, tile(chip, cache, rows, block_d, spread=spread, page=page)): None
                    for spread in SPREADS
                    for page in (0, 16)
                }
                usual = tile(chip, cache, rows, block_d)
                found += [(cache, rows, block_d, p, t) for p, t in tiles if t != usual or not p]
    return found


def chip_class(capability: int, shared_memory_bytes: int) -> str:
    """Return the table of a chip, by the shared memory of a block, which names and capabilities do not order."""
    if shared_memory_bytes < SHARED_MEMORY[80]:
        return "sm_86"
    return "sm_90" if capability >= 90 else "sm_80"


def _pick(row: _Row, rows: int) -> DecodeTile | None:
    return next((tile for most, tile in row.items() if rows <= most), None)
