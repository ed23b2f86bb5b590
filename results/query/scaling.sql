-- name: rows
{ctes}, memory AS ({memory}), energy AS ({energy}), timed AS (
    SELECT {key}, mode, shape, latency_ms, p20, p80, n, statistic, status, note, source, gpu_name
    FROM paired WHERE {SEQLEN} IS NOT NULL)
SELECT timed.*, coalesce(memory.value, any_memory.value) AS peak_memory_mb,
       coalesce(energy.value, any_energy.value) AS energy_j, runs.tf32, runs.measured_tflops,
       runs.measured_gbs
FROM timed JOIN runs ON runs.run_id = timed.run_id
LEFT JOIN memory ON {same_memory} AND memory.mode = if(timed.mode = 'bwd', 'fwd_bwd', timed.mode)
LEFT JOIN energy ON {same_energy} AND energy.mode = timed.mode
LEFT JOIN memory any_memory ON {same_any_memory} AND any_memory.mode IS NULL
LEFT JOIN energy any_energy ON {same_any_energy} AND any_energy.mode IS NULL
ORDER BY timed.dtype, timed.head_dim, shape, timed.implementation, timed.seqlen_q, timed.seqlen_k

-- name: roofs
{ctes} SELECT DISTINCT run_id, runs.gpu_name,
                  coalesce(runs.tf32, false) OR list_contains(?, run_id || '/' || implementation) AS tf32,
                  list_contains(?, run_id || '/' || implementation) AS fp8,
                  list_contains(?, run_id || '/' || implementation) AND head_dim BETWEEN 17 AND 128 AS six,
                  runs.measured_tflops, runs.measured_gbs
FROM paired JOIN runs USING (run_id) WHERE dtype IS NOT DISTINCT FROM ? ORDER BY tf32, fp8, six, run_id

-- name: beside
SELECT {keys}, mode, max(value) AS value FROM {RESULTS}
WHERE metric = ? AND status = 'ok' AND {condition} GROUP BY ALL
