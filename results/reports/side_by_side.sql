-- name: like
WITH sized AS (SELECT * FROM results WHERE seqlen_q IS NOT NULL),
theirs AS (SELECT DISTINCT level, subject, {fields} FROM sized WHERE report = ? AND source = 'published'),
ours AS (
    SELECT DISTINCT run_id, level, subject, {fields} FROM sized
    WHERE report IS DISTINCT FROM ? AND metric = 'latency_ms')
SELECT ours.run_id, count(DISTINCT (theirs)) AS shapes
FROM theirs JOIN ours ON theirs.level IS NOT DISTINCT FROM ours.level
                     AND theirs.subject IS NOT DISTINCT FROM ours.subject AND {same}
GROUP BY ALL ORDER BY shapes DESC, run_id DESC
