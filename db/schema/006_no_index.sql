-- Create the tables again without primary keys. In a log of millions of rows, their indexes take most of the time of a
-- merge and a third of the file. The code that adds rows keeps keys unique (kernrec/store/rows.py), and kernrec checks the
-- keys in other people's files. 001_initial.sql, 003_checked_against.sql and 004_row_state.sql describe the columns.

CREATE TABLE gpu_without_index (
    gpu_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    sm INTEGER NOT NULL,
    figures VARCHAR NOT NULL
);
INSERT INTO gpu_without_index BY NAME FROM gpu;
DROP TABLE gpu;
ALTER TABLE gpu_without_index RENAME TO gpu;

CREATE TABLE kernel_without_index (
    kernel_id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    kernel_hash VARCHAR NOT NULL,
    op VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,
    source VARCHAR NOT NULL
);
INSERT INTO kernel_without_index BY NAME FROM kernel;
DROP TABLE kernel;
ALTER TABLE kernel_without_index RENAME TO kernel;

CREATE TABLE config_without_index (
    config_id VARCHAR NOT NULL,
    kernel VARCHAR NOT NULL,
    tunables VARCHAR NOT NULL
);
INSERT INTO config_without_index BY NAME FROM config;
DROP TABLE config;
ALTER TABLE config_without_index RENAME TO config;

CREATE TABLE problem_without_index (
    problem_id VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    op VARCHAR NOT NULL,
    dims VARCHAR NOT NULL,
    dtype VARCHAR NOT NULL,
    layout VARCHAR NOT NULL
);
INSERT INTO problem_without_index BY NAME FROM problem;
DROP TABLE problem;
ALTER TABLE problem_without_index RENAME TO problem;

CREATE TABLE profile_without_index (
    profile_id VARCHAR NOT NULL,
    kernel VARCHAR NOT NULL,
    kernel_hash VARCHAR NOT NULL,
    code_key VARCHAR NOT NULL,
    sm INTEGER NOT NULL,
    launch INTEGER NOT NULL CHECK (launch >= 0),
    entry VARCHAR NOT NULL,
    code VARCHAR NOT NULL,
    registers INTEGER NOT NULL CHECK (registers >= 0),
    spill_bytes INTEGER NOT NULL CHECK (spill_bytes >= 0),
    stack_bytes INTEGER NOT NULL CHECK (stack_bytes >= 0),
    static_smem_bytes INTEGER NOT NULL CHECK (static_smem_bytes >= 0),
    ptx_hash VARCHAR NOT NULL,
    compiler VARCHAR NOT NULL,
    metrics VARCHAR NOT NULL,
    terms VARCHAR NOT NULL,
    counts DOUBLE[] NOT NULL
);
INSERT INTO profile_without_index BY NAME FROM profile;
DROP TABLE profile;
ALTER TABLE profile_without_index RENAME TO profile;

CREATE TABLE measurement_without_index (
    measurement_id VARCHAR NOT NULL,
    gpu VARCHAR NOT NULL,
    kernel VARCHAR NOT NULL,
    kernel_hash VARCHAR NOT NULL,
    config_id VARCHAR NOT NULL,
    problem_id VARCHAR NOT NULL,
    cubin_hash VARCHAR,
    compiler VARCHAR,
    compiler_flags VARCHAR,
    registers INTEGER,
    smem_bytes INTEGER,
    spill_bytes INTEGER,
    input_generator VARCHAR,
    input_seed BIGINT,
    input_distribution VARCHAR,
    input_footprint DOUBLE CHECK (input_footprint > 0),
    device VARCHAR,
    device_uuid_hash VARCHAR,
    vbios VARCHAR,
    driver VARCHAR,
    cuda VARCHAR,
    cupy VARCHAR,
    nvml VARCHAR,
    power_limit_w DOUBLE CHECK (power_limit_w > 0),
    locked_sm_clock_hz DOUBLE CHECK (locked_sm_clock_hz > 0),
    locked_memory_clock_hz DOUBLE CHECK (locked_memory_clock_hz > 0),
    ecc BOOLEAN,
    mig BOOLEAN,
    persistence BOOLEAN,
    other_processes INTEGER CHECK (other_processes >= 0),
    protocol_version INTEGER NOT NULL CHECK (protocol_version >= 0),
    tier VARCHAR NOT NULL CHECK (tier IN ('screen', 'coarse', 'final')),
    l2_policy VARCHAR,
    latency_window_s DOUBLE CHECK (latency_window_s > 0),
    energy_window_s DOUBLE CHECK (energy_window_s > 0),
    launches BIGINT CHECK (launches >= 0),
    selection_probability DOUBLE CHECK (selection_probability > 0 AND selection_probability <= 1),
    latency_s DOUBLE CHECK (latency_s > 0 AND latency_s < 1e6),
    latency_samples_s DOUBLE[],
    latency_n INTEGER CHECK (latency_n >= 0),
    latency_mad_s DOUBLE CHECK (latency_mad_s >= 0),
    latency_q10_s DOUBLE CHECK (latency_q10_s > 0),
    latency_q90_s DOUBLE CHECK (latency_q90_s > 0),
    latency_low_s DOUBLE CHECK (latency_low_s > 0),
    latency_high_s DOUBLE CHECK (latency_high_s > 0),
    latency_outliers INTEGER CHECK (latency_outliers >= 0),
    latency_converged BOOLEAN,
    sustained_latency_s DOUBLE CHECK (sustained_latency_s > 0),
    energy_j DOUBLE CHECK (energy_j > 0 AND energy_j < 1e9),
    energy_low_j DOUBLE CHECK (energy_low_j > 0),
    energy_high_j DOUBLE CHECK (energy_high_j > 0),
    power_w DOUBLE CHECK (power_w > 0 AND power_w < 1e5),
    energy_method VARCHAR,
    energy_ticks INTEGER CHECK (energy_ticks >= 0),
    energy_tick_s DOUBLE CHECK (energy_tick_s > 0),
    energy_counter_ratio DOUBLE CHECK (energy_counter_ratio > 0),
    idle_w DOUBLE CHECK (idle_w >= 0),
    temperature_start_c DOUBLE,
    temperature_end_c DOUBLE,
    sm_clock_mean_hz DOUBLE CHECK (sm_clock_mean_hz > 0),
    sm_clock_min_hz DOUBLE CHECK (sm_clock_min_hz > 0),
    memory_clock_hz DOUBLE CHECK (memory_clock_hz > 0),
    event_reasons VARCHAR,
    session VARCHAR NOT NULL,
    block INTEGER,
    position INTEGER,
    reference_age_s DOUBLE CHECK (reference_age_s >= 0),
    reference_latency DOUBLE CHECK (reference_latency > 0),
    reference_energy DOUBLE CHECK (reference_energy > 0),
    measured_at TIMESTAMP NOT NULL,
    measured_by VARCHAR,
    outcome VARCHAR NOT NULL CHECK (
        outcome IN ('ok', 'compile', 'constraint', 'timeout', 'crash', 'incorrect', 'quarantined')
    ),
    error VARCHAR,
    numeric_error DOUBLE CHECK (numeric_error >= 0),
    tolerance DOUBLE CHECK (tolerance > 0),
    checked_against VARCHAR,
    block_open BOOLEAN,
    replayed BOOLEAN,
    CHECK (outcome <> 'ok' OR latency_s IS NOT NULL)
);
INSERT INTO measurement_without_index BY NAME FROM measurement;
DROP TABLE measurement;
ALTER TABLE measurement_without_index RENAME TO measurement;
