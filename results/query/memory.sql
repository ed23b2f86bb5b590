-- name: parts
SELECT implementation, {key}, {SHAPE} AS shape, run_id, {values}
FROM {RESULTS}
WHERE list_contains(?, metric) AND status = 'ok'
  AND (mode IS NOT DISTINCT FROM ? OR metric = 'activation_memory_mb') AND {condition}
GROUP BY ALL HAVING peak_memory_mb IS NOT NULL
ORDER BY dtype, head_dim, shape, implementation, seqlen_q, seqlen_k, run_id
