-- name: scopes
SELECT {names}, list(DISTINCT implementation) FROM slices JOIN numbers USING (slice_id)
WHERE status = 'ok' AND metric = 'latency_ms' AND level IN ? GROUP BY ALL ORDER BY ALL
