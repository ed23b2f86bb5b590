-- name: rows
WITH timed AS (
    SELECT {GPU} AS gpu, {TIMING} AS timing, run_id, mode, batch, num_heads, num_kv_heads, seqlen_k AS tokens, head_dim,
           dtype, causal, implementation, features, value AS latency_ms, time
    FROM {RESULTS}
    WHERE coalesce(level, 'op') = 'op' AND metric = 'latency_ms' AND status = 'ok' AND seqlen_q = seqlen_k
          AND coalesce(window_size, 0) = 0 AND (features IS NULL OR regexp_matches(features, '^blocks=[0-9.:]+$'))
          AND run_id IN (SELECT run_id FROM results WHERE starts_with(features, 'blocks='))
), dense AS (
    SELECT * EXCLUDE (implementation, features, latency_ms, time), min(latency_ms) AS dense_ms,
           arg_min(implementation, latency_ms) AS dense
    FROM timed WHERE features IS NULL GROUP BY ALL
)
SELECT * EXCLUDE (features, time), split_part(features, ':', 1)[8:]::INTEGER AS block,
       100 * split_part(features, ':', 2)::DOUBLE AS sparsity, dense_ms / latency_ms AS speedup
FROM timed JOIN dense USING (gpu, timing, run_id, mode, batch, num_heads, num_kv_heads, tokens, head_dim, dtype, causal)
WHERE features IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY gpu, timing, mode, batch, num_heads, num_kv_heads, tokens, head_dim, dtype,
                           causal, features, implementation ORDER BY time DESC NULLS LAST, run_id DESC) = 1
ORDER BY gpu, timing, mode, tokens, sparsity, latency_ms, implementation
