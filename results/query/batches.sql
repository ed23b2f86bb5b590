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
SELECT *, latency_ms / min(latency_ms) OVER of_batch AS of_fastest,
       CASE WHEN implementation <> '{separate}' THEN
           latency_ms / max(latency_ms) FILTER (implementation = '{separate}') OVER of_batch END AS of_separate,
       CASE WHEN page_size IS DISTINCT FROM 0 THEN
           latency_ms / max(latency_ms) FILTER (page_size = 0) OVER of_pages END AS of_contiguous
FROM (SELECT * FROM counted QUALIFY {counting})
WINDOW of_batch AS (PARTITION BY run_id, {CASE_FIELDS}), of_pages AS (PARTITION BY run_id, implementation, {of_pages})
ORDER BY seqlen_q, batch, lengths, num_heads, num_kv_heads, dtype, page_size, latency_ms NULLS LAST,
         implementation, seqlen_k DESC
