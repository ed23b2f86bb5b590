-- name: gpus
SELECT gpu, sum(numbers)::BIGINT AS numbers, count(DISTINCT run_id) AS runs,
       count(DISTINCT choice) AS implementations, max(created) AS latest,
       string_agg(DISTINCT source, ', ' ORDER BY source) AS sources, any_value(device_type) AS device_type
FROM choices JOIN runs USING (run_id) WHERE name = 'implementation' GROUP BY gpu
ORDER BY any_value(device_type) IS NOT DISTINCT FROM 'cpu',
         coalesce(sum(numbers) FILTER (level = 'op'), 0) DESC, gpu

-- name: runs_beside
WITH theirs AS (
    SELECT DISTINCT {kind_of_import}, seqlen_q FROM measurements
    WHERE run_id = $1 AND metric = 'latency_ms'
),
ours AS (
    SELECT DISTINCT run_id, {kind_of_import}, seqlen_q FROM measurements WHERE metric = 'latency_ms'
),
shared AS (
    SELECT ours.run_id, count(*) FILTER (ours.seqlen_q = theirs.seqlen_q) AS same, count(*) AS alike
    FROM ours JOIN theirs USING ({kind_of_import}) WHERE ours.run_id <> $1 GROUP BY ours.run_id
)
SELECT run_id FROM shared JOIN runs USING (run_id) WHERE source IN ('local', 'shipped')
ORDER BY gpu_name IS NOT DISTINCT FROM (SELECT gpu_name FROM runs WHERE run_id = $1) DESC,
         sum(alike) OVER (PARTITION BY gpu_name) DESC, same DESC, alike DESC, 1
LIMIT {most_beside}

-- name: rows_stored
SELECT * EXCLUDE (run_id) FROM stored WHERE list_contains($1, run_id)

-- name: rows_given
SELECT unnest($2::VARCHAR[]) AS cell, unnest($3::DOUBLE[]) AS value, unnest($4::BIGINT[]) AS count,
       unnest($5::DOUBLE[]) AS least

-- name: runs_like
WITH stored AS (
    SELECT run_id, {cell} AS cell, value, len(samples) AS count,
           round(list_min(samples) / list_max(samples), 9) AS least
    FROM measurements WHERE metric IN ('latency_ms', 'compile_ms') AND value > 0
),
theirs AS ({theirs}),
ours AS (FROM stored WHERE NOT list_contains($1, run_id)),
sampled AS (
    SELECT run_id, count(DISTINCT least) AS same FROM ours SEMI JOIN theirs USING (count, least)
    WHERE least < 1 GROUP BY run_id
),
timed AS (
    SELECT run_id, count(*) AS same FROM ours JOIN theirs USING (cell)
    GROUP BY run_id, round(theirs.value / ours.value, 8)
)
SELECT run_id FROM (SELECT * FROM sampled WHERE same >= 3 UNION ALL SELECT * FROM timed WHERE same >= 2)
GROUP BY run_id ORDER BY max(same) DESC, run_id LIMIT {most_alike}

-- name: gpus_with
SELECT gpu, sum(numbers)::BIGINT AS numbers FROM choices
WHERE name = 'metric' AND list_contains(?, choice) GROUP BY gpu HAVING sum(numbers) > 0
ORDER BY numbers DESC, gpu

-- name: options
SELECT {column} AS choice, sum(choices.numbers)::BIGINT AS numbers FROM choices JOIN runs USING (run_id)
WHERE name = ? AND {where} GROUP BY ALL ORDER BY numbers DESC, choice

-- name: choices
WITH here AS (SELECT name, choice, numbers, run_id FROM choices WHERE {where})
SELECT name, choice, sum(numbers)::BIGINT AS numbers FROM (
    SELECT name, choice, numbers FROM here
    UNION ALL SELECT 'run', run_id, numbers FROM here WHERE name = 'mode'
    UNION ALL SELECT 'source', source, numbers FROM here JOIN runs USING (run_id) WHERE name = 'mode')
GROUP BY ALL ORDER BY name, numbers DESC, choice

-- name: cell
{ctes}
SELECT implementation, status, note, latency_ms, statistic, mean, std, p20, p80, ci_low, ci_high, n, samples,
       speedup, baseline_status, shape, mode, timing, flags, printed, origin, time,
       batch, num_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v, dtype, causal, window_size,
       level, page_size, latent_dim, {rest_of_case}, run_id, runs.* EXCLUDE (run_id, implementations)
FROM paired JOIN runs USING (run_id)
WHERE dtype IS NOT DISTINCT FROM ? AND {column} IS NOT DISTINCT FROM ?
      AND {row} IS NOT DISTINCT FROM ?
ORDER BY shape, latency_ms NULLS LAST, implementation

-- name: runs
SELECT runs.* EXCLUDE (implementations), coalesce(numbers, 0) AS numbers, coalesce(failures, 0) AS failures,
       counts.implementations
FROM runs LEFT JOIN counts USING (run_id) ORDER BY {NEWEST_FIRST}

-- name: most_of_run
SELECT {LEVEL}, gpu_name, subject FROM results
WHERE run_id = ? AND metric IN ('latency_ms', 'latency_extrapolated_ms') AND status = 'ok'
GROUP BY ALL ORDER BY count(*) DESC, 1, 2, 3 LIMIT 1

-- name: outcomes
SELECT run_id, count(*) FILTER (WHERE status IN ('unsupported', 'skipped')) AS skipped,
       count(*) FILTER (WHERE status NOT IN ('ok', 'unsupported', 'skipped')) AS failed
FROM numbers JOIN slices USING (slice_id) WHERE status <> 'ok' GROUP BY run_id

-- name: run_progress
SELECT mode, timing, count(*) AS numbers FROM numbers JOIN slices USING (slice_id)
WHERE run_id = ? AND metric = 'latency_ms' AND status = 'ok' GROUP BY ALL ORDER BY mode, timing
