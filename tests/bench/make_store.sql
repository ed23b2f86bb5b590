-- name: filter_options
SELECT list(DISTINCT gpu_name), list(DISTINCT implementation), list(DISTINCT dtype), list(DISTINCT head_dim),
       list(DISTINCT seqlen_q) FROM results

-- name: latency_by_seqlen_and_implementation
SELECT implementation, seqlen_q, median(value) FROM results
WHERE metric = 'latency_ms' AND status = 'ok' AND timing = 'kernel' AND gpu_name = 'NVIDIA H200'
GROUP BY ALL

-- name: speedup_within_each_run
SELECT m.seqlen_q, m.head_dim, m.implementation, median(b.value / m.value)
FROM measurements m JOIN measurements b
  ON m.run_id = b.run_id AND b.implementation = 'torch_naive' AND m.metric = b.metric
 AND m.mode IS NOT DISTINCT FROM b.mode AND m.timing IS NOT DISTINCT FROM b.timing AND m.dtype = b.dtype
 AND m.seqlen_q = b.seqlen_q AND m.head_dim = b.head_dim AND m.causal = b.causal AND m.batch = b.batch
WHERE m.metric = 'latency_ms' AND m.status = 'ok' AND b.status = 'ok' GROUP BY ALL

-- name: statuses
SELECT implementation, status, count(*) FROM results GROUP BY ALL
