-- name: there
SELECT {GPU} AS gpu, {TIMING} AS timing FROM {RESULTS} WHERE {wanted} AND status = 'ok'
GROUP BY ALL ORDER BY count(*) DESC, gpu, timing

-- name: rows
WITH timed AS (
    SELECT {CASE_FIELDS}, {SHAPE} AS shape, implementation, value AS latency_ms, status, note,
           run_id, code_age, age
    FROM {RESULTS} WHERE {wanted} AND {GPU} = ? AND {TIMING} = ?
    QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
), counted AS (SELECT *, {MEASURED} FROM timed)
SELECT * FROM counted QUALIFY {counting}
ORDER BY seqlen_q, batch, lengths, num_heads, num_kv_heads, dtype, page_size, latency_ms NULLS LAST,
         implementation
