-- name: contests
{ctes}
SELECT {stored}, CASE WHEN latency_ms <= {judged_within} * fastest OR device_type = 'cpu' THEN samples END AS samples,
       speedup, source, protocol, mask, shape
FROM (SELECT paired.*, {MASK} AS mask, runs.protocol,
             min(latency_ms) OVER (PARTITION BY {CASE_FIELDS}) AS fastest
      FROM paired JOIN runs USING (run_id))
ORDER BY {CASE_FIELDS}, implementation
