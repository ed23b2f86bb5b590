-- name: insert
INSERT INTO measurements ({columns}, time_text)
SELECT {stored}, time FROM

-- name: odd_columns
SELECT count(COLUMNS(*)),
       count(*) FILTER (run_id <> ? OR (status = 'ok') <> (value IS NOT NULL)
                        OR coalesce({breaks_a_rule} OR {no_choice}, false))
       + count(*) - count(DISTINCT measurement_id) AS odd
FROM read_parquet(?) m

-- name: not_canonical
SELECT position FROM (
    SELECT *, CASE WHEN regexp_full_match(line, ?) AND starts_with(line, prefix)
                   THEN json_extract(line, {keys}) END AS key,
              CASE WHEN ? AND key IS NOT NULL THEN json_transform(line, '{ruled}') END AS m
    FROM incoming)
WHERE key IS NULL OR coalesce({breaks_a_rule}, false)
   OR (? AND ({id} <> line[-22:-3] OR coalesce(contains({lengths}, 'q'), false)))
   OR coalesce(try_cast(key[{num_heads}] AS INTEGER)
               % try_cast(key[{num_kv_heads}] AS INTEGER), 0) <> 0
   OR coalesce({lengths} = '"ragged"'
               AND try_cast(key[{batch}] AS INTEGER) > {max_ragged}, false)
   OR (? AND coalesce(key[{features}]::VARCHAR, 'null') <> 'null')

-- name: breaks_a_rule
(({least} < 0 AND list_contains({not_below_0}, m.metric))
 OR ({least} = 0 AND list_contains({not_0}, m.metric))
 OR m.std < 0 OR m.sm_clock_mhz < 0 OR m.p20 > m.p80 OR m.ci_low > m.ci_high
 OR (coalesce(m.statistic, 'median') = 'median'
     AND (m.value < greatest(m.p20, m.ci_low) OR m.value > least(m.p80, m.ci_high)))
 OR (len(m.samples) > 0 AND m.n <> len(m.samples))
 OR (len(m.round_sizes) > 0 AND (list_min(m.round_sizes) < 1
     OR list_sum(m.round_sizes) <> coalesce(nullif(len(m.samples), 0), m.n))))
