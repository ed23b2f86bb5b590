-- name: shared
WITH named AS (SELECT run_id, coalesce(created, '1970-01-01') AS age, gpu_name,
                      source IN ('local', 'upload') AS own,
                      nullif(json_extract_string(sweep, '$.name'), 'null') AS sweep_name
               FROM runs),
     pairs AS (SELECT a.run_id AS before, b.run_id AS after, a.age AS since, b.age, a.own OR b.own AS own, a.own AND b.own AS both_own,
                      coalesce(a.sweep_name = b.sweep_name AND a.gpu_name = b.gpu_name, false) AS alike
               FROM named a JOIN named b ON a.age <= b.age AND a.run_id <> b.run_id
               ORDER BY alike DESC, own DESC, b.age DESC, since DESC LIMIT 60),
     timed AS (SELECT run_id, mode, timing, case_id, implementation, value FROM numbers JOIN slices USING (slice_id)
               WHERE metric = 'latency_ms' AND status = 'ok' AND value > 0
                     AND run_id IN (SELECT unnest([before, after]) FROM pairs)),
     lengths AS (SELECT run_id, count(*) AS length FROM timed GROUP BY run_id)
SELECT before, after, CASE WHEN NOT alike THEN 'the newest runs that share shapes'
                           WHEN both_own THEN 'your newest runs of one sweep on one GPU'
                           WHEN own THEN 'your newest run and a shipped one, of one sweep on one GPU'
                           ELSE 'the shipped runs of one sweep on one GPU with the largest share of changes' END
FROM pairs JOIN lengths x ON x.run_id = before JOIN lengths y ON y.run_id = after
JOIN timed a ON a.run_id = before
JOIN timed b ON b.run_id = after AND a.case_id = b.case_id AND a.implementation = b.implementation
                AND a.mode IS NOT DISTINCT FROM b.mode AND a.timing IS NOT DISTINCT FROM b.timing
GROUP BY before, after, since, age, alike, own, both_own
ORDER BY alike DESC, own DESC, count(*) >= {least} DESC,
         CASE WHEN own OR NOT alike
              THEN (2 * count(*) >= greatest(any_value(x.length), any_value(y.length)), age) END DESC,
         avg((abs(ln(a.value / b.value)) > 0.05)::INT) DESC, age DESC, since DESC, 1, 2
LIMIT 1

-- name: broad
SELECT run_id FROM measurements JOIN runs USING (run_id)
WHERE metric = 'latency_ms' AND status = 'ok' AND coalesce(level, 'op') = 'op' AND device_type IS DISTINCT FROM 'cpu'
GROUP BY run_id, created HAVING bool_or(list_contains(?, implementation))
ORDER BY bool_or(source IN ('local', 'shipped')) DESC, count(DISTINCT implementation) DESC, {NEWEST_FIRST}

-- name: implementations
SELECT implementation FROM measurements WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok'
GROUP BY implementation ORDER BY count(*) DESC, implementation

-- name: versions
SELECT run_id, empty_launch_ms FROM runs WHERE against IS NOT NULL AND against <> 'null'
ORDER BY created DESC NULLS LAST, run_id
