-- name: slices
SELECT {GPU}, {LEVEL}, {WORKLOAD}, {MASK}, {MODE}, {TIMING}, count(*) AS numbers, list(DISTINCT implementation)
FROM {RESULTS} WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok' GROUP BY ALL
ORDER BY numbers DESC, 2, 3, 4, 5, 6

-- name: reasons
SELECT implementation, status, coalesce(any_value(note), ''), count(*) AS numbers FROM measurements
WHERE run_id = ? AND status <> 'ok' GROUP BY implementation, status ORDER BY numbers DESC, implementation, status
