"""Block-sparse masks: the speedup over the fastest dense call of the same sizes, by sparsity and tokens."""

import pandas as pd

from results.sql import SqlFile
from results.store.database import Store

_SQL = SqlFile(__file__)


def rows(store: Store) -> pd.DataFrame:
    """Return a row a GPU, timing, mode, number of tokens, sparsity and implementation, from the newest run of a cell.

    `speedup` is the time of the fastest dense call in the same run over `latency_ms`; the fastest row comes first.
    """
    return store.query(_SQL("rows"))


def pays_from(table: pd.DataFrame) -> dict[int, float]:
    """Return by number of tokens the least sparsity from which on the fastest row is faster than dense calls."""
    best = table.groupby(["tokens", "sparsity"])["speedup"].max()
    found = {}
    for tokens, of_tokens in best.groupby(level="tokens"):
        slower = [sparsity for (_, sparsity), speedup in of_tokens.items() if speedup <= 1]
        ahead = [sparsity for _, sparsity in of_tokens.index if sparsity > max(slower, default=0)]
        if ahead:
            found[int(tokens)] = float(min(ahead))
    return found
