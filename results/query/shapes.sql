-- name: there
WITH {named}
SELECT {GPU} AS gpu, {TIMING} AS timing FROM {RESULTS} JOIN shapes ON {joined}
WHERE {counted} AND status = 'ok' GROUP BY ALL ORDER BY count(*) DESC, gpu, timing

-- name: numbers
WITH {named}, timed AS (
    SELECT {cell}, implementation, value AS latency_ms, status, note, run_id, code_age, age,
           list_contains(?, run_id || '/' || implementation) AS own
    FROM {RESULTS} JOIN shapes ON {joined}
    WHERE {counted} AND {GPU} = ? AND {TIMING} = ?
    QUALIFY row_number() OVER (PARTITION BY run_id, {cell}, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
), paired AS (SELECT *, {pair} AS pair, {measured}
              FROM timed WINDOW one AS (PARTITION BY run_id, {cell}))
SELECT {numbers} FROM paired QUALIFY {counting}
ORDER BY {cell}, latency_ms NULLS LAST, implementation
