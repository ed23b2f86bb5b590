-- name: contests
WITH shown AS (
    SELECT unnest(?::VARCHAR[]) AS run_id, unnest(?::UBIGINT[]) AS case_id, unnest(?::VARCHAR[]) AS implementation,
           unnest(?::VARCHAR[]) AS of_mode, unnest(?::VARCHAR[]) AS of_timing, generate_subscripts(?, 1) - 1 AS place
), found AS (
    SELECT * FROM shown JOIN (
        SELECT *, {CASE_ID} AS case_id FROM measurements WHERE metric = 'latency_ms' AND list_contains(?, run_id)
    ) USING (run_id, case_id, implementation)
    WHERE {MODE} = of_mode AND {TIMING} = of_timing
    QUALIFY row_number() OVER (PARTITION BY place ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
)
SELECT {stored}, CASE WHEN value <= {judged_within} * min(value) OVER (PARTITION BY {CASE_FIELDS})
                           OR device_type = 'cpu' THEN samples END AS samples,
       place, protocol, {MASK} AS mask
FROM found JOIN runs USING (run_id) ORDER BY {CASE_FIELDS}, implementation
