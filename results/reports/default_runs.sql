-- name: tried
SELECT run_id, implementation, mode, metric = '{memory}', bool_or(value IS NOT NULL), {CASE_FIELDS} FROM results
WHERE metric IN {metrics} AND source <> 'published' GROUP BY ALL
