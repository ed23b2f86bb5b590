-- name: features
WITH tries AS (
    SELECT *, metric = 'latency_ms' AS timed, list_contains(?, run_id || '/' || implementation) AS in_fp8
    FROM results
    WHERE (metric = 'latency_ms' OR starts_with(metric, 'error_')) AND status <> 'skipped' AND {condition})
SELECT feature, implementation, numbers, tried, refused, why,
       CASE WHEN numbers > 0 THEN '{RAN}' WHEN tried = 0 THEN '{NOT_TRIED}' WHEN errors > 0 THEN '{CHECKED}'
            WHEN refused = tried THEN '{REFUSED}' ELSE '{FAILED}' END AS seen
FROM ({parts}) ORDER BY place, implementation

-- name: tried
SELECT {at} AS place, '{feature}' AS feature, implementation,
       count(*) FILTER (status = 'ok' AND timed AND {has}) AS numbers,
       count(*) FILTER (status = 'ok' AND NOT timed AND {has}) AS errors, count(*) FILTER ({has}) AS tried,
       count(*) FILTER (status = 'unsupported' AND {has}) AS refused,
       any_value(note ORDER BY status = 'unsupported' DESC) FILTER (status <> 'ok' AND {has}) AS why
FROM tries GROUP BY implementation
