-- name: cases
SELECT run_id, implementation, {CASE_FIELDS}, source, {SHAPE} AS shape, metric, any_value(value) AS value
FROM {RESULTS}
WHERE status = 'ok' AND level = 'decode'
  AND ((metric = 'latency_ms' AND {timed}) OR (list_contains(?, metric) AND {checked}))
GROUP BY ALL
