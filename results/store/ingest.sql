-- name: insert
INSERT INTO measurements ({columns}, time_text)
SELECT {stored}, time FROM

-- name: odd_columns
SELECT count(COLUMNS(*)),
       count(*) FILTER (run_id <> ? OR (status = 'ok') <> (value IS NOT NULL)
                        OR coalesce({breaks_a_rule} OR {no_choice}, false))
       + count(*) - count(DISTINCT measurement_id) AS odd
FROM read_parquet(?) m

-- name: breaks_a_rule
(({least} < 0 AND list_contains({not_below_0}, m.metric))
 OR ({least} = 0 AND list_contains({not_0}, m.metric))
 OR m.std < 0 OR m.sm_clock_mhz < 0 OR m.p20 > m.p80 OR m.ci_low > m.ci_high
 OR (coalesce(m.statistic, 'median') = 'median'
     AND (m.value < greatest(m.p20, m.ci_low) OR m.value > least(m.p80, m.ci_high)))
 OR (len(m.samples) > 0 AND m.n <> len(m.samples))
 OR (len(m.round_sizes) > 0 AND (list_min(m.round_sizes) < 1
     OR list_sum(m.round_sizes) <> coalesce(nullif(len(m.samples), 0), m.n))))
