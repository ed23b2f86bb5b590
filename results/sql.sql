-- name: cells
WITH one AS (
    SELECT *, value AS latency_ms, {SHAPE} AS shape,
           bool_or(implementation = ? AND status = 'ok') OVER (PARTITION BY run_id, {CASE_KEY}) AS has_baseline
    FROM {RESULTS} WHERE metric = 'latency_ms' AND {condition}
    QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
), counted AS (
    SELECT *, {MEASURED} FROM one
), same_run AS (
    SELECT * FROM counted QUALIFY {COMPARED_RUN}
), paired AS (
    SELECT *, max(latency_ms) FILTER (implementation = ?) OVER same_case / latency_ms AS speedup,
           max(status) FILTER (implementation = ?) OVER same_case AS baseline_status
    FROM same_run WINDOW same_case AS (PARTITION BY {CASE_KEY})
)
