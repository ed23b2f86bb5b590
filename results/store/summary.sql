-- name: tables
CREATE TABLE slices (slice_id INTEGER NOT NULL, {typed_slice});
CREATE TABLE numbers (slice_id INTEGER NOT NULL, {typed_number});
CREATE TABLE choices (
    run_id VARCHAR NOT NULL,
    gpu VARCHAR NOT NULL,
    level VARCHAR NOT NULL,
    workload VARCHAR NOT NULL,
    mask VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    choice VARCHAR NOT NULL,
    numbers BIGINT NOT NULL  -- with status ok
);
CREATE TABLE counts (
    run_id VARCHAR NOT NULL,
    numbers BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    implementations BIGINT NOT NULL
);
CREATE TABLE counting AS SELECT {columns} FROM {every_number} LIMIT 0;
CREATE TABLE code_order AS SELECT run_id, code_created FROM run_ages LIMIT 0;

-- name: gather
-- From measurements to slices, numbers, choices and counts.
CREATE OR REPLACE TEMP TABLE gathered AS
SELECT (SELECT coalesce(max(slice_id), 0) FROM slices) + dense_rank() OVER (ORDER BY {slice}) AS slice_id, *
FROM (
    SELECT {expressions}
    FROM measurements JOIN runs USING (run_id) WHERE run_id = ANY(?) AND metric IN ({metrics})
          AND (against IS NULL OR against = 'null' OR NOT contains(implementation, '@'))  -- as in the view results
)

-- name: slices
INSERT INTO slices SELECT DISTINCT slice_id, {slice} FROM gathered

-- name: numbers
INSERT INTO numbers SELECT slice_id, {number} FROM gathered
QUALIFY row_number() OVER (PARTITION BY slice_id, case_id, implementation
                           ORDER BY status = 'ok' DESC, time DESC NULLS LAST, origin) = 1
ORDER BY slice_id, case_id

-- name: choices
INSERT INTO choices
SELECT run_id, gpu, level, workload, mask, name, choice, count(*) FILTER (status = 'ok')
FROM (UNPIVOT (
    SELECT run_id, gpu, level, workload, mask, status, mode,
           CASE WHEN metric = 'latency_ms' THEN timing END AS timing, dtype, head_dim::VARCHAR AS head_dim,
           CASE WHEN level IN ({with_batch}) THEN batch::VARCHAR END AS batch,
           CASE WHEN level IN ({with_heads}) THEN num_heads::VARCHAR END AS num_heads, seqlen::VARCHAR AS seqlen,
           shape, implementation, metric
    FROM gathered
) ON mode, timing, dtype, head_dim, batch, num_heads, seqlen, shape, implementation, metric
  INTO NAME name VALUE choice)
GROUP BY ALL

-- name: counts
INSERT INTO counts
SELECT run_id, count(*) FILTER (status = 'ok'), count(*) FILTER (status <> 'ok'), count(DISTINCT implementation)
FROM measurements WHERE run_id = ANY(?) GROUP BY run_id

-- name: shrunk
-- From here on: from numbers to counting; gpu, shape and case_id name a case.
CREATE OR REPLACE TEMP TABLE shrunk AS SELECT DISTINCT gpu, shape, case_id FROM counting WHERE run_id = ANY(?)

-- name: reordered
INSERT INTO shrunk WITH moved AS (
    SELECT run_id, coalesce(code_order.code_created, '-infinity') AS was,
           coalesce(run_ages.code_created, '-infinity') AS now
    FROM code_order JOIN run_ages USING (run_id)
), reordered AS (
    SELECT DISTINCT one.run_id FROM moved one JOIN moved other ON (one.was <= other.was) <> (one.now <= other.now)
)
SELECT DISTINCT gpu, shape, case_id FROM numbers JOIN slices USING (slice_id) SEMI JOIN reordered USING (run_id)
EXCEPT FROM shrunk

-- name: candidates
CREATE OR REPLACE TEMP TABLE candidates AS
WITH changed AS (
    SELECT numbers.*, slices.* EXCLUDE (slice_id) FROM numbers JOIN (FROM slices WHERE run_id = ANY($runs)) slices
    USING (slice_id)
), grown AS (SELECT DISTINCT gpu, shape, case_id FROM changed EXCEPT FROM shrunk)
SELECT {columns} FROM changed JOIN runs USING (run_id) SEMI JOIN grown USING (gpu, shape, case_id)
UNION ALL SELECT {columns} FROM counting SEMI JOIN grown USING (gpu, shape, case_id) WHERE NOT run_id = ANY($runs)
UNION ALL SELECT {columns} FROM {every_number} SEMI JOIN shrunk USING (gpu, shape, case_id)

-- name: forget
DELETE FROM counting WHERE (gpu, shape, case_id) IN
(SELECT (gpu, shape, case_id) FROM candidates UNION ALL SELECT (gpu, shape, case_id) FROM shrunk)

-- name: take
INSERT INTO counting
WITH said AS (
    SELECT gpu, shape, case_id, run_id, code_age, age,
           list(hash(mode, timing, metric, implementation))
           || coalesce(list(hash(mode, timing, metric, implementation, status)) FILTER (status = 'ok'), []) AS said
    FROM candidates JOIN run_ages USING (run_id) GROUP BY ALL
), surpassed AS (
    SELECT DISTINCT gpu, shape, case_id, run.run_id FROM said run JOIN said other USING (gpu, shape, case_id)
    WHERE {surpasses} AND list_has_all(other.said, run.said)
)
SELECT {columns} FROM candidates JOIN run_ages USING (run_id) ANTI JOIN surpassed USING (gpu, shape, case_id, run_id)
ORDER BY gpu, workload, mask, mode, timing, metric, case_id, age, implementation

-- name: finish
DELETE FROM code_order;
INSERT INTO code_order SELECT run_id, code_created FROM run_ages;
DROP TABLE candidates;
DROP TABLE shrunk
