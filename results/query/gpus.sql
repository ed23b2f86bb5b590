-- name: pairs
WITH cells AS (SELECT DISTINCT gpu_name, implementation, mode, seqlen_q, head_dim FROM results
               WHERE metric = 'latency_ms' AND status = 'ok' AND gpu_name <> '' AND seqlen_q > 0)
SELECT a.gpu_name, b.gpu_name FROM cells a JOIN cells b USING (implementation, mode, seqlen_q)
WHERE a.gpu_name < b.gpu_name AND (a.head_dim IS NOT DISTINCT FROM b.head_dim)
GROUP BY ALL ORDER BY count(*) DESC, 1, 2

-- name: implementations
SELECT implementation FROM results
WHERE metric = 'latency_ms' AND status = 'ok' AND list_contains(?, gpu_name)
GROUP BY implementation HAVING count(DISTINCT gpu_name) = ? ORDER BY count(*) DESC, implementation

-- name: rows
SELECT m.run_id, gpu_name, sm_count, power_limit_w, tf32, measured_tflops, m.mode, m.timing, value, sm_clock_mhz, joules,
       {fields}
FROM measurements m JOIN runs USING (run_id) LEFT JOIN (
    SELECT run_id, implementation, mode, timing, hash({CASE_FIELDS}) AS of_case,
           any_value(value) AS joules
    FROM measurements WHERE metric = 'energy_j' AND status = 'ok' GROUP BY ALL) energy
ON energy.run_id = m.run_id AND energy.implementation = m.implementation AND of_case = hash({fields})
   AND coalesce(energy.mode, m.mode) IS NOT DISTINCT FROM m.mode
   AND coalesce(energy.timing, m.timing) IS NOT DISTINCT FROM m.timing
WHERE metric = 'latency_ms' AND status = 'ok' AND value > 0 AND gpu_name = ? AND m.implementation = ?
QUALIFY row_number() OVER (PARTITION BY m.mode, m.timing, {fields}
                           ORDER BY source = 'upload', created DESC NULLS LAST, energy.mode NULLS LAST, origin) = 1
ORDER BY {fields}, m.mode, m.timing
