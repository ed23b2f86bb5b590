-- name: devices
SELECT gpu, sum(numbers), string_agg(DISTINCT source, ',' ORDER BY source) FROM choices
JOIN runs USING (run_id) WHERE name = 'implementation' AND level = 'op' GROUP BY gpu ORDER BY 2 DESC, 1

-- name: measured
SELECT gpu_name, implementation FROM results
WHERE coalesce(level, 'op') = 'op' AND metric = 'latency_ms' AND status = 'ok' AND dtype IS NOT NULL
      AND causal IS NOT NULL AND device_type IS DISTINCT FROM 'cpu' AND gpu_name IS NOT NULL
GROUP BY gpu_name, implementation
QUALIFY sum(count(*)) OVER (PARTITION BY gpu_name) >= {least} ORDER BY ALL
