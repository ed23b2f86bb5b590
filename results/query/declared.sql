-- name: runs
SELECT run_id, source = 'upload', implementations FROM runs WHERE implementations IS NOT NULL
ORDER BY created NULLS FIRST, run_id DESC

-- name: measured
SELECT DISTINCT implementation FROM measurements WHERE run_id IN (SELECT run_id FROM runs WHERE source <> 'upload')
