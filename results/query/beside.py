"""Runs that have the shapes of an imported one."""

from __future__ import annotations

from results.store.database import Store

_MOST = 8
_SHAPE = "level, seqlen_q, seqlen_k, head_dim, dtype, causal, mode"
_SQL = f"""
WITH theirs AS (SELECT DISTINCT {_SHAPE} FROM measurements WHERE run_id = $1 AND metric = 'latency_ms'),
     ours AS (SELECT DISTINCT run_id, {_SHAPE} FROM measurements WHERE metric = 'latency_ms')
SELECT ours.run_id
FROM ours JOIN theirs USING ({_SHAPE}) JOIN runs ON runs.run_id = ours.run_id
WHERE runs.source IN ('local', 'shipped') AND ours.run_id <> $1
GROUP BY ours.run_id, runs.gpu_name
ORDER BY runs.gpu_name IS NOT DISTINCT FROM (SELECT gpu_name FROM runs WHERE run_id = $1) DESC, count(*) DESC, 1
LIMIT {_MOST}
"""


def candidates(store: Store, run_id: str) -> list[str]:
    """Return runs of one's own or attnbench's that share shapes with that one: those of its GPU first."""
    return [name for (name,) in store.rows(_SQL, [run_id])]
