-- name: errors
WITH of_case AS (
    SELECT *, coalesce(inputs, '{normal}') AS kind, {SHAPE} AS shape, {TIMING} AS how,
           hash({CASE_KEY}, coalesce(inputs, '{normal}')) AS cell,
           bool_or(coalesce(inputs, '{normal}') <> '{normal}') OVER (PARTITION BY run_id) AS varied
    FROM {RESULTS} WHERE {condition}
), wrong AS (
    SELECT *, any_value(value) FILTER (implementation = '{naive}')
                  OVER (PARTITION BY run_id, cell) AS naive_error
    FROM of_case WHERE metric = ? AND status = 'ok'
    QUALIFY row_number() OVER (PARTITION BY run_id, cell, implementation ORDER BY time DESC NULLS LAST) = 1
), taken AS (
    SELECT run_id, cell, implementation, status AS outcome, value AS latency_ms,
           any_value(value) FILTER (implementation = ?) OVER (PARTITION BY run_id, cell) / value AS speedup
    FROM of_case WHERE metric = 'latency_ms' AND mode = ? AND how = ?
    QUALIFY row_number() OVER (PARTITION BY run_id, cell, implementation ORDER BY time DESC NULLS LAST) = 1
), joined AS (
    SELECT *, bool_or(latency_ms IS NOT NULL) OVER (PARTITION BY run_id, cell) AS timed,
           {measured}
    FROM wrong LEFT JOIN taken USING (run_id, cell, implementation)
), one_run AS (
    SELECT * FROM joined QUALIFY {counts}
)
SELECT implementation, dtype, {SEQLEN} AS seqlen, head_dim, shape, kind AS inputs, value AS error, naive_error,
       CASE WHEN naive_error > 0 THEN value / naive_error END AS over_naive, latency_ms, speedup, outcome,
       CASE WHEN list_contains(flags, '{failed}') THEN note END AS fails, source, run_id
FROM one_run ORDER BY dtype, seqlen, head_dim, shape, inputs, implementation
