-- name: traces
WITH traced AS (SELECT DISTINCT run_id FROM measurements WHERE metric = 'sustained_tflops'),
cells AS (
    SELECT {key}, {pivoted},
           max(value) FILTER (metric = 'latency_ms' AND timing = 'kernel') AS latency_ms,
           max(sm_clock_mhz) FILTER (metric = 'latency_ms' AND timing = 'kernel') AS cold_clock_mhz,
           max(status) FILTER (metric = 'sustained_tflops') AS status,
           max(note) FILTER (metric = 'sustained_tflops') AS note
    FROM measurements WHERE run_id IN (SELECT run_id FROM traced)
    GROUP BY ALL HAVING count(*) FILTER (metric = 'sustained_tflops') > 0)
SELECT cells.*, source, created, gpu_name, power_limit_w FROM cells JOIN runs USING (run_id)
ORDER BY created DESC NULLS LAST, {key}

-- name: energies
WITH calls AS (
    SELECT {key}, max(value) FILTER (metric = 'energy_j') AS joules,
           max(value) FILTER (metric = 'energy_power_w') AS watts,
           max(value) FILTER (metric = 'latency_ms' AND timing = 'kernel') AS latency_ms
    FROM measurements WHERE status = 'ok' AND metric IN ('energy_j', 'energy_power_w', 'latency_ms')
          AND run_id IN (SELECT run_id FROM measurements WHERE metric = 'energy_j' AND status = 'ok')
    GROUP BY ALL HAVING joules > 0 AND latency_ms > 0)
SELECT calls.*, gpu_name, power_limit_w, source, count(*) OVER (PARTITION BY run_id, mode, {CASE_FIELDS}) AS kernels
FROM calls JOIN runs USING (run_id) ORDER BY kernels DESC, created DESC NULLS LAST, {key}
