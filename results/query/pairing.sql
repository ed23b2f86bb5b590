-- name: cells
WITH shown AS (
    SELECT unnest(?::VARCHAR[]) AS run_id, unnest(?::UBIGINT[]) AS case_id, unnest(?::VARCHAR[]) AS implementation,
           unnest(?::VARCHAR[]) AS of_mode, unnest(?::VARCHAR[]) AS of_timing, unnest(?::VARCHAR[]) AS shape,
           unnest(?::DOUBLE[]) AS speedup, unnest(?::VARCHAR[]) AS baseline_status
), paired AS (
    SELECT *, value AS latency_ms FROM shown JOIN (
        SELECT *, {CASE_ID} AS case_id FROM results WHERE metric = 'latency_ms' AND list_contains(?, run_id)
    ) USING (run_id, case_id, implementation)
    WHERE {MODE} = of_mode AND {TIMING} = of_timing
    QUALIFY row_number() OVER (PARTITION BY run_id, case_id, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
)
