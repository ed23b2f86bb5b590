-- name: variation
SELECT quantile_cont(factor, 0.9) FROM (
    SELECT max(value) / min(value) AS factor FROM results
    WHERE device_type = 'cpu' AND gpu_name = ? AND metric = 'latency_ms' AND status = 'ok' AND value > 0
          AND starts_with(implementation, 'torch_')
    GROUP BY {CASE_KEY}, implementation, mode, timing HAVING count(DISTINCT run_id) > 1)

-- name: times
SELECT {case_id}, {columns} FROM measurements
WHERE run_id = ANY(?) AND implementation = ANY(?) AND metric = 'latency_ms' AND status = 'ok'
      AND value = ANY(?) AND coalesce({MODE} = ?, true) AND coalesce({TIMING} = ?, true)
