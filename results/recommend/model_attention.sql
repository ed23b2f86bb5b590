-- name: gpus
SELECT gpu_name FROM results WHERE coalesce(level, 'op') IN ('op', 'decode') AND metric = 'latency_ms'
AND status = 'ok' AND gpu_name IS NOT NULL AND device_type IS DISTINCT FROM 'cpu'
GROUP BY gpu_name ORDER BY count(*) DESC, gpu_name

-- name: rows
SELECT {CASE_FIELDS}, implementation, mode, run_id, source, value FROM results
WHERE coalesce(level, 'op') = ? AND gpu_name = ? AND metric = 'latency_ms' AND status = 'ok'
AND list_contains(?, mode) AND dtype = ? AND causal AND head_dim = ? AND head_dim_v = ?
AND coalesce(window_size, 0) = ? AND coalesce(page_size, 0) = 0 AND coalesce(latent_dim, 0) = 0
AND features IS NULL
AND coalesce(inputs, 'normal') = 'normal' AND coalesce(lengths, 'uniform') = 'uniform'
AND coalesce(cache_dtype, dtype) = ? AND seqlen_q = CASE WHEN ? = 'op' THEN seqlen_k ELSE 1 END
AND batch IS NOT NULL AND num_heads IS NOT NULL AND num_kv_heads IS NOT NULL AND seqlen_k IS NOT NULL
QUALIFY coalesce(timing, '') = min(coalesce(timing, '')) FILTER (timing = 'kernel') OVER ()
        OR count(*) FILTER (timing = 'kernel') OVER () = 0
