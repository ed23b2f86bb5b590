-- name: rows
WITH together AS (
    SELECT *, any_value(value) FILTER (metric = 'attention_ms' AND status = 'ok')
                  OVER (PARTITION BY run_id, {CASE_KEY}, mode, {TIMING}, implementation) AS attention_ms
    FROM {RESULTS} WHERE level = '{level}' AND metric IN ('latency_ms', 'attention_ms') AND {condition}
), timed AS (
    SELECT *, bool_or(implementation = ? AND status = 'ok')
                  OVER (PARTITION BY run_id, {CASE_KEY}) AS has_baseline
    FROM together WHERE metric = 'latency_ms'
    QUALIFY row_number() OVER (PARTITION BY run_id, {CASE_KEY}, mode, {TIMING}, implementation
                               ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
), counted AS (SELECT *, {MEASURED} FROM timed
), one_run AS (SELECT * FROM counted QUALIFY {COMPARED_RUN})
SELECT {CASE_FIELDS}, {WORKLOAD} AS workload, implementation, coalesce(mode, '{NOT_STATED}') AS mode,
       value AS latency_ms, p20, p80, n, status, note, run_id, source,
       attention_ms, 100 * attention_ms / value AS share,
       max(value) FILTER (implementation = ?) OVER (PARTITION BY run_id, {CASE_KEY}, mode, {TIMING}) / value AS speedup
FROM one_run
ORDER BY dtype, {order}, num_heads::DOUBLE * head_dim, seqlen_q, {modes}, latency_ms NULLS LAST,
         implementation
