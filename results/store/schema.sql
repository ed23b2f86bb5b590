CREATE TABLE IF NOT EXISTS runs (
    run_id VARCHAR NOT NULL,
    source VARCHAR NOT NULL CHECK (source IN ('local', 'published', 'upload', 'shipped')),
    created TIMESTAMP,
    created_text VARCHAR,  -- as the record says it
    title VARCHAR,
    report VARCHAR,
    gpu_name VARCHAR,
    gpu_uuid VARCHAR,
    device_type VARCHAR,
    compute_capability VARCHAR,
    sm_count BIGINT,
    gpu_memory_mb DOUBLE,
    l2_mb DOUBLE,
    power_limit_w DOUBLE,
    driver VARCHAR,
    cuda VARCHAR,
    cudnn VARCHAR,
    torch VARCHAR,
    triton VARCHAR,
    python VARCHAR,
    os VARCHAR,
    cpu VARCHAR,
    host VARCHAR,
    git_commit VARCHAR,
    git_dirty BOOLEAN,
    kernel_hash VARCHAR,
    tf32 BOOLEAN,
    protocol VARCHAR,
    seed BIGINT,
    command VARCHAR,
    notes VARCHAR,
    measured_tflops VARCHAR,  -- JSON: dtype to 10^12 operations a second
    measured_gbs DOUBLE,
    sweep VARCHAR,  -- JSON
    implementations VARCHAR,  -- JSON: by name what each declares
    cards VARCHAR,  -- JSON: by name what each is
    against VARCHAR,  -- JSON: the other version measured beside this one
    empty_launch_ms DOUBLE
);

CREATE TABLE IF NOT EXISTS measurements (
    run_id VARCHAR NOT NULL,
    measurement_id VARCHAR NOT NULL,
    level VARCHAR,
    subject VARCHAR,
    batch INTEGER CHECK (batch IS NULL OR batch > 0),
    num_heads INTEGER,
    num_kv_heads INTEGER,
    seqlen_q INTEGER CHECK (seqlen_q IS NULL OR seqlen_q > 0),
    seqlen_k INTEGER CHECK (seqlen_k IS NULL OR seqlen_k > 0),
    head_dim INTEGER,
    head_dim_v INTEGER,
    dtype VARCHAR,
    causal BOOLEAN,
    window_size INTEGER,
    page_size INTEGER,
    latent_dim INTEGER,
    inputs VARCHAR,
    cache_dtype VARCHAR,
    lengths VARCHAR,
    num_layers INTEGER,
    optimizer VARCHAR,
    checkpointing BOOLEAN,
    compiled BOOLEAN,
    features VARCHAR,
    implementation VARCHAR NOT NULL,
    mode VARCHAR,
    timing VARCHAR,
    metric VARCHAR NOT NULL,
    baseline VARCHAR,
    status VARCHAR NOT NULL,
    value DOUBLE CHECK (value IS NULL OR (isfinite(value) AND status = 'ok')),
    statistic VARCHAR,
    mean DOUBLE CHECK (mean IS NULL OR isfinite(mean)),
    std DOUBLE CHECK (std IS NULL OR (isfinite(std) AND std >= 0)),
    p20 DOUBLE,
    p80 DOUBLE,
    ci_low DOUBLE,
    ci_high DOUBLE,
    n INTEGER CHECK (n IS NULL OR n > 0),
    samples DOUBLE[],
    note VARCHAR,
    flags VARCHAR[],
    printed VARCHAR,
    origin VARCHAR,
    time TIMESTAMP,
    time_text VARCHAR,  -- as the journal says it
    round_sizes INTEGER[],
    sm_clock_mhz DOUBLE,
    config VARCHAR,
    card VARCHAR
);

-- How far each run folder has been read; written in the same transaction as its rows.
CREATE TABLE IF NOT EXISTS ingested (
    run_id VARCHAR NOT NULL,
    path VARCHAR NOT NULL,
    byte_offset BIGINT NOT NULL,
    line_count BIGINT NOT NULL,
    journal_crc BIGINT NOT NULL,  -- of the bytes before the offset
    record_crc BIGINT NOT NULL,   -- of run.json
    stamp VARCHAR NOT NULL        -- size, time and inode of both files when they were read
);

-- What could not be read; line 0 is the run's record.
CREATE TABLE IF NOT EXISTS problems (
    run_id VARCHAR NOT NULL,
    line BIGINT NOT NULL,
    reason VARCHAR NOT NULL
);

-- One row: the layout that this file has, whose it is, and a number that grows with every change of the data.
CREATE TABLE IF NOT EXISTS store (
    layout VARCHAR NOT NULL,
    store_id VARCHAR NOT NULL,
    data_version BIGINT NOT NULL
);

-- The other version of a run of two versions stands beside this one on Compare, and is no choice anywhere else.
CREATE OR REPLACE VIEW results AS
SELECT m.*, r.source, r.report, r.title, r.created, r.gpu_name, r.device_type, r.gpu_memory_mb,
       r.compute_capability, r.torch, r.triton, r.measured_tflops, r.measured_gbs
FROM measurements m
JOIN runs r USING (run_id)
WHERE r.against IS NULL OR r.against = 'null' OR NOT contains(m.implementation, '@');

-- The ages of runs, by which results/counting.py decides which run counts for a case: the rank of the last measurement
-- of its code on its GPU, and the rank of the run itself. A run without a kernel hash shares its code with no other.
-- Uploads are older than all other runs, whatever date they state: they never replace numbers of this machine or ours.
CREATE OR REPLACE VIEW run_ages AS
SELECT run_id, code_created, dense_rank() OVER (ORDER BY uploaded, code_created DESC NULLS LAST) AS code_age,
       row_number() OVER (ORDER BY uploaded, created DESC NULLS LAST, run_id) AS age
FROM (SELECT run_id, created, source = 'upload' AS uploaded, CASE WHEN kernel_hash IS NULL THEN created ELSE
          max(created) OVER (PARTITION BY source = 'upload', gpu_name, torch, triton, kernel_hash, protocol)
      END AS code_created FROM runs);
