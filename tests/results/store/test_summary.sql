-- name: counting_runs
WITH one AS (
    SELECT *, bool_or(implementation = ? AND status = 'ok') OVER (PARTITION BY run_id, {CASE_KEY}) AS has_baseline
    FROM {RESULTS} WHERE metric = 'latency_ms' AND {condition}
    QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
), counted AS (
    SELECT *, {MEASURED} FROM one
), same_run AS (
    SELECT * FROM counted QUALIFY {COMPARED_RUN}
)
SELECT DISTINCT seqlen_q, run_id FROM same_run
