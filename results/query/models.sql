-- name: gpus
SELECT gpu_name FROM results WHERE level = 'model' AND subject = ? AND gpu_name IS NOT NULL
AND metric IN ('latency_ms', 'latency_extrapolated_ms') GROUP BY gpu_name
ORDER BY count(*) FILTER (status = 'ok') DESC, gpu_name

-- name: subjects
SELECT subject FROM results WHERE level = 'model' AND metric = 'latency_ms' AND status = 'ok'
AND subject IS NOT NULL GROUP BY subject ORDER BY count(*) DESC, subject

-- name: rows
WITH found AS (
    SELECT {CASE_FIELDS}, implementation, mode, run_id, source, gpu_name, measured_gbs, created, timing, metric, value,
           p20, p80, status, note, code_age, age,
           max(value) FILTER (metric = 'attention_share') OVER of_cell AS attention_share,
           max(value) FILTER (metric = 'peak_memory_mb') OVER of_cell AS peak_memory_mb,
           max(value) FILTER (metric = 'kv_cache_mb') OVER of_cell AS kv_cache_mb,
           max(value) FILTER (metric = 'activation_memory_mb') OVER of_cell AS activation_memory_mb
    FROM {RESULTS} WHERE level = 'model' AND subject = ? AND gpu_name = ?
    WINDOW of_cell AS (PARTITION BY run_id, {CASE_FIELDS}, implementation, mode)
), timed AS (
    FROM found WHERE metric IN ('latency_ms', 'latency_extrapolated_ms')
    QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_FIELDS}, implementation, mode, metric
                               ORDER BY status = 'ok' DESC, timing = 'kernel' DESC) = 1
), counted AS (
    SELECT *, {MEASURED}, bool_or(status = 'ok' AND metric = 'latency_ms' AND
               list_contains({whole}, mode)) OVER (PARTITION BY run_id, {CASE_KEY}) AS whole FROM timed
)
SELECT * EXCLUDE (metric, value, code_age, age, measured, whole), value AS latency_ms,
       metric = 'latency_extrapolated_ms' AS extrapolated
FROM counted QUALIFY {counting} ORDER BY run_id, {CASE_FIELDS}, implementation, mode, metric

-- name: method_errors
SELECT run_id, implementation, mode, max(100 * abs(guessed / measured - 1))
FROM (SELECT run_id, implementation, mode, max(value) FILTER (metric = 'latency_ms') AS measured,
             max(value) FILTER (metric = 'latency_extrapolated_ms') AS guessed
      FROM results WHERE level = 'model' AND gpu_name = ? AND status = 'ok'
      GROUP BY run_id, {CASE_FIELDS}, implementation, mode, timing
      HAVING measured > 0 AND guessed > 0)
GROUP BY run_id, implementation, mode
