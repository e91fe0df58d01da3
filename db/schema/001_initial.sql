-- kernrec's database. Units are SI and part of the names. The key of a row is a hash of its other columns that are not
-- NULL (kernrec/store/rows.py), so equal rows have equal keys in all databases, and merging is a set union. A later
-- migration may add a column that is NULL in old rows without changing their keys. JSON is text in canonical form.

CREATE TABLE migration (
    id         INTEGER PRIMARY KEY,
    name       VARCHAR NOT NULL,
    applied_at TIMESTAMP NOT NULL
);

-- Catalog entry of a GPU as it was when the GPU was measured.
CREATE TABLE gpu (
    gpu_id  VARCHAR PRIMARY KEY,
    name    VARCHAR NOT NULL,
    sm      INTEGER NOT NULL,
    figures VARCHAR NOT NULL   -- JSON
);

CREATE TABLE kernel (
    kernel_id   VARCHAR PRIMARY KEY,
    name        VARCHAR NOT NULL,
    kernel_hash VARCHAR NOT NULL,   -- hash of its spec and source, as the kernel library computes it
    op          VARCHAR NOT NULL,
    spec        VARCHAR NOT NULL,   -- kernel.toml as JSON, in the order of its tunables and dimensions
    source      VARCHAR NOT NULL    -- CUDA C++, or PTX
);

CREATE TABLE config (
    config_id VARCHAR PRIMARY KEY,
    kernel    VARCHAR NOT NULL,
    tunables  VARCHAR NOT NULL      -- JSON: value of each tunable
);

CREATE TABLE problem (
    problem_id VARCHAR PRIMARY KEY,
    key        VARCHAR NOT NULL,    -- matmul[m=..,n=..,k=..]f32,row
    op         VARCHAR NOT NULL,
    dims       VARCHAR NOT NULL,    -- JSON
    dtype      VARCHAR NOT NULL,
    layout     VARCHAR NOT NULL
);

-- Static profile of one launch of compiled code (compile-time tunables, dtype, layout) on one architecture.
CREATE TABLE profile (
    profile_id        VARCHAR PRIMARY KEY,
    kernel            VARCHAR NOT NULL,
    kernel_hash       VARCHAR NOT NULL,
    code_key          VARCHAR NOT NULL,
    sm                INTEGER NOT NULL,
    launch            INTEGER NOT NULL CHECK (launch >= 0),
    entry             VARCHAR NOT NULL,
    code              VARCHAR NOT NULL,   -- JSON
    registers         INTEGER NOT NULL CHECK (registers >= 0),
    spill_bytes       INTEGER NOT NULL CHECK (spill_bytes >= 0),
    stack_bytes       INTEGER NOT NULL CHECK (stack_bytes >= 0),
    static_smem_bytes INTEGER NOT NULL CHECK (static_smem_bytes >= 0),
    ptx_hash          VARCHAR NOT NULL,
    compiler          VARCHAR NOT NULL,
    metrics           VARCHAR NOT NULL,   -- names, separated by spaces
    terms             VARCHAR NOT NULL,   -- names, separated by spaces; the first is `block`
    counts            DOUBLE[] NOT NULL   -- (metrics, terms), terms fastest
);

-- Log of measurements on real devices. Rows are only added, never changed.
CREATE TABLE measurement (
    measurement_id         VARCHAR PRIMARY KEY,
    -- what ran
    gpu                    VARCHAR NOT NULL,    -- catalog name
    kernel                 VARCHAR NOT NULL,
    kernel_hash            VARCHAR NOT NULL,
    config_id              VARCHAR NOT NULL,
    problem_id             VARCHAR NOT NULL,
    cubin_hash             VARCHAR,
    compiler               VARCHAR,
    compiler_flags         VARCHAR,
    registers              INTEGER,
    smem_bytes             INTEGER,             -- static and dynamic, per block
    spill_bytes            INTEGER,
    -- inputs
    input_generator        VARCHAR,
    input_seed             BIGINT,
    input_distribution     VARCHAR,
    input_footprint        DOUBLE CHECK (input_footprint > 0),   -- bytes touched over bytes of L2
    -- device
    device                 VARCHAR,             -- name that the driver reports
    device_uuid_hash       VARCHAR,
    vbios                  VARCHAR,
    driver                 VARCHAR,
    cuda                   VARCHAR,
    cupy                   VARCHAR,
    nvml                   VARCHAR,
    power_limit_w          DOUBLE CHECK (power_limit_w > 0),     -- NULL: the GPU's default
    locked_sm_clock_hz     DOUBLE CHECK (locked_sm_clock_hz > 0), -- NULL: not locked
    locked_memory_clock_hz DOUBLE CHECK (locked_memory_clock_hz > 0),
    ecc                    BOOLEAN,
    mig                    BOOLEAN,
    persistence            BOOLEAN,
    other_processes        INTEGER CHECK (other_processes >= 0),
    -- protocol
    protocol_version       INTEGER NOT NULL CHECK (protocol_version >= 0),
    tier                   VARCHAR NOT NULL CHECK (tier IN ('screen', 'coarse', 'final')),
    l2_policy              VARCHAR,
    latency_window_s       DOUBLE CHECK (latency_window_s > 0),
    energy_window_s        DOUBLE CHECK (energy_window_s > 0),
    launches               BIGINT CHECK (launches >= 0),
    selection_probability  DOUBLE CHECK (selection_probability > 0 AND selection_probability <= 1),
    -- latency of one sequence of launches, in a burst unless the name says sustained
    latency_s              DOUBLE CHECK (latency_s > 0 AND latency_s < 1e6),   -- median
    latency_samples_s      DOUBLE[],
    latency_n              INTEGER CHECK (latency_n >= 0),
    latency_mad_s          DOUBLE CHECK (latency_mad_s >= 0),
    latency_q10_s          DOUBLE CHECK (latency_q10_s > 0),
    latency_q90_s          DOUBLE CHECK (latency_q90_s > 0),
    latency_low_s          DOUBLE CHECK (latency_low_s > 0),
    latency_high_s         DOUBLE CHECK (latency_high_s > 0),
    latency_outliers       INTEGER CHECK (latency_outliers >= 0),              -- samples beyond 5 MAD
    latency_converged      BOOLEAN,
    sustained_latency_s    DOUBLE CHECK (sustained_latency_s > 0),
    -- energy of one sequence of launches, idle power included; NULL if the window was too short
    energy_j               DOUBLE CHECK (energy_j > 0 AND energy_j < 1e9),
    energy_low_j           DOUBLE CHECK (energy_low_j > 0),
    energy_high_j          DOUBLE CHECK (energy_high_j > 0),
    power_w                DOUBLE CHECK (power_w > 0 AND power_w < 1e5),
    energy_method          VARCHAR,
    energy_ticks           INTEGER CHECK (energy_ticks >= 0),
    energy_tick_s          DOUBLE CHECK (energy_tick_s > 0),
    energy_counter_ratio   DOUBLE CHECK (energy_counter_ratio > 0),            -- energy counter over integrated power
    idle_w                 DOUBLE CHECK (idle_w >= 0),
    -- state of the GPU
    temperature_start_c    DOUBLE,
    temperature_end_c      DOUBLE,
    sm_clock_mean_hz       DOUBLE CHECK (sm_clock_mean_hz > 0),
    sm_clock_min_hz        DOUBLE CHECK (sm_clock_min_hz > 0),
    memory_clock_hz        DOUBLE CHECK (memory_clock_hz > 0),
    event_reasons          VARCHAR,             -- JSON: clock event reason -> share of the time
    -- control
    session                VARCHAR NOT NULL,
    block                  INTEGER,
    position               INTEGER,
    reference_age_s        DOUBLE CHECK (reference_age_s >= 0),
    reference_latency      DOUBLE CHECK (reference_latency > 0),               -- relative to the start of the session
    reference_energy       DOUBLE CHECK (reference_energy > 0),
    measured_at            TIMESTAMP NOT NULL,  -- UTC
    measured_by            VARCHAR,
    -- outcome
    outcome                VARCHAR NOT NULL CHECK (
        outcome IN ('ok', 'compile', 'constraint', 'timeout', 'crash', 'incorrect', 'quarantined')
    ),
    error                  VARCHAR,
    numeric_error          DOUBLE CHECK (numeric_error >= 0),                  -- relative to the RMS of the output
    tolerance              DOUBLE CHECK (tolerance > 0),
    CHECK (outcome <> 'ok' OR latency_s IS NOT NULL)
);

-- One row for each config at each power limit and clock, from rows of the newest protocol: the median of the most careful
-- tier of each session, then the median over sessions.
CREATE VIEW answer AS
WITH ranked AS (
    SELECT *, CASE tier WHEN 'screen' THEN 0 WHEN 'coarse' THEN 1 ELSE 2 END AS thoroughness
    FROM measurement
    WHERE outcome = 'ok'
    QUALIFY protocol_version = max(protocol_version) OVER (
        PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz
    )
),
by_session AS (
    SELECT *
    FROM ranked
    QUALIFY thoroughness = max(thoroughness) OVER (
        PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, session
    )
),
session_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, protocol_version, session,
           median(latency_s) AS latency_s, median(energy_j) AS energy_j, median(power_w) AS power_w,
           max(measured_at) AS measured_at, max(device) AS device
    FROM by_session
    GROUP BY ALL
)
SELECT gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, protocol_version,
       median(latency_s) AS latency_s, median(energy_j) AS energy_j, median(power_w) AS power_w,
       count(*) AS sessions, max(measured_at) AS measured_at, max(device) AS device
FROM session_answer
GROUP BY ALL;

-- For each GPU, problem, power limit and clock: the configs with the lowest latency, energy and energy-delay product.
CREATE VIEW best AS
WITH scored AS (
    SELECT 'latency' AS objective, latency_s AS score, * FROM answer
    UNION ALL BY NAME
    SELECT 'energy' AS objective, energy_j AS score, * FROM answer WHERE energy_j IS NOT NULL
    UNION ALL BY NAME
    SELECT 'edp' AS objective, energy_j * latency_s AS score, * FROM answer WHERE energy_j IS NOT NULL
)
SELECT *
FROM scored
QUALIFY row_number() OVER (
    PARTITION BY objective, gpu, problem_id, power_limit_w, locked_sm_clock_hz
    ORDER BY score, latency_s, kernel, kernel_hash, config_id
) = 1;

-- The Pareto front of latency and energy for each GPU, problem, power limit and clock: no other config is at least as
-- good in both costs and better in one. Configs with equal costs are all on the front.
CREATE VIEW front AS
SELECT *
FROM answer
WHERE energy_j IS NOT NULL
QUALIFY energy_j = min(energy_j) OVER (
        PARTITION BY gpu, problem_id, power_limit_w, locked_sm_clock_hz
        ORDER BY latency_s RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
    AND latency_s = min(latency_s) OVER (
        PARTITION BY gpu, problem_id, power_limit_w, locked_sm_clock_hz, energy_j
    );
