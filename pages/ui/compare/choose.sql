-- name: shared
WITH cells AS (SELECT DISTINCT run_id, hash({CASE_KEY}, implementation, mode, timing) AS cell FROM measurements
               WHERE metric = 'latency_ms' AND status = 'ok'),
     lengths AS (SELECT run_id, count(*) AS numbers FROM cells GROUP BY run_id),
     named AS (SELECT run_id, created, coalesce(created, '1970-01-01') AS age, gpu_name,
                      nullif(json_extract_string(sweep, '$.name'), 'null') AS sweep_name, numbers
               FROM runs JOIN lengths USING (run_id))
SELECT older.run_id, newer.run_id
FROM cells older JOIN cells newer ON older.cell = newer.cell AND older.run_id <> newer.run_id
JOIN named a ON a.run_id = older.run_id JOIN named b ON b.run_id = newer.run_id
WHERE a.age <= b.age
GROUP BY ALL
ORDER BY coalesce(any_value(a.sweep_name = b.sweep_name AND a.gpu_name = b.gpu_name), false) DESC,
         count(*) >= {least} AND 2 * count(*) >= any_value(greatest(a.numbers, b.numbers)) DESC,
         count(*) >= {least} DESC, any_value(b.age) DESC, count(*) DESC, any_value(a.age) DESC, 1, 2
LIMIT 1

-- name: broad
SELECT run_id FROM measurements JOIN runs USING (run_id)
WHERE metric = 'latency_ms' AND status = 'ok' AND coalesce(level, 'op') = 'op' AND device_type IS DISTINCT FROM 'cpu'
GROUP BY run_id, created HAVING bool_or(list_contains(?, implementation))
ORDER BY bool_or(source IN ('local', 'shipped')) DESC, count(DISTINCT implementation) DESC, {NEWEST_FIRST}

-- name: implementations
SELECT implementation FROM measurements WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok'
GROUP BY implementation ORDER BY count(*) DESC, implementation
