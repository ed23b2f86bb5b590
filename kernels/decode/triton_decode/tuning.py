"""The tiles of the split-KV kernel: the table "triton_decode" of `kernels.tables`.

By the format of the cache, padded head_dim, rows of a tile, how a request fills the GPU, keys of a page (0: a
contiguous cache), and whether the cache holds latents.
"""

from dataclasses import dataclass

from ...tables import family

CHIPS = ("sm_80", "sm_86", "sm_90")
CACHES = ("half", "e4m3", "float32")
BLOCK_DIMS = (16, 32, 64, 128, 256, 512)
ROWS = (16, 32, 64, 128)  # 128: more than one tile of 64, or one of 128
# How a request fills the GPU. "many": many tiles. "brief": many tiles with few keys. "whole": about one tile for each
# multiprocessor, with a moderate number of keys. "whole_brief": the same with few keys. "few": tiles that many programs
# share. "short": few tiles with few keys. "shortest": short even if a tile had 16 rows. "single": short, for callers
# that avoid a second launch.
SPREADS = ("many", "brief", "whole", "whole_brief", "few", "short", "shortest", "single")


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


def tile(
    chip: str, cache: str, rows: int, block_d: int, *, spread: str = "many", page: int = 0, latent: bool = False
) -> DecodeTile:
    """Return the tile for `rows` rows (padded) of head_dim (block_d, padded) over a cache.

    spread: a name of SPREADS; page: keys of a page, 0 for a contiguous cache; latent: keys and values are one tensor.
    """
    table = family(chip)["triton_decode"]
    return DecodeTile(*table.first(cache=cache, block_d=block_d, rows=rows, spread=spread, page=page, latent=latent))
