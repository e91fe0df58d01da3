-- Views of the table `measurement`. kernrec runs these definitions itself and never uses the views of a database file,
-- which may be somebody else's. Files contain the views for people who open them with DuckDB. Macros are expanded
-- before (kernrec/store/schema.py), so files contain no macros.

-- Ends of the 90 % interval over several sessions or contributors: the median of their ends, or the quantile of their
-- values if it is farther out. NULL if there is only one value, without an interval.
CREATE MACRO low_end(amount, low) AS
    CASE WHEN count(low) > 0 OR count(amount) > 1 THEN least(median(low), quantile_cont(amount, 0.05)) END;
CREATE MACRO high_end(amount, high) AS
    CASE WHEN count(high) > 0 OR count(amount) > 1 THEN greatest(median(high), quantile_cont(amount, 0.95)) END;

-- Measurements that nobody withdrew.
CREATE OR REPLACE VIEW unretracted_rows AS
SELECT * FROM measurement ANTI JOIN retraction USING (measurement_id);

-- Measurements with their origin. `merged` is true for rows of other people. `contributor` is 'own' for the user's rows;
-- otherwise it is the public key that signed the row, or empty for an unsigned row. If several keys signed a row, it is
-- the first key in alphabetical order.
CREATE OR REPLACE VIEW sourced_rows AS
SELECT unretracted_rows.*, signer IS NOT NULL AS merged, coalesce(signer, 'own') AS contributor
FROM unretracted_rows
LEFT JOIN (
    -- A file of other people may list a row several times. Use each row once.
    SELECT measurement_id, min(signer) AS signer FROM merged GROUP BY measurement_id
) AS source USING (measurement_id);

-- Rows that were measured on whole GPUs, or replayed from such rows. Rows of a MIG slice are excluded, because a slice
-- has the GPU's name but only a part of its units. Rows of one contributor contradict each other if they have the same
-- position in the same block of a session but different content. Such rows stay in the log, and this view excludes them.
-- A contributor cannot contradict another contributor's rows.
-- Answers use only the rows of a config with the highest `precedence`. The user's rows come before merged rows. Then a
-- newer version of the protocol comes first. Replayed rows come after all versions, and rows of a version that this
-- kernrec does not know come last (NEWEST_PROTOCOL, kernrec/store/measurement.py).
CREATE OR REPLACE VIEW whole_gpu_rows AS
WITH sourced AS NOT MATERIALIZED (
    SELECT * FROM sourced_rows WHERE mig IS DISTINCT FROM true
)
SELECT * REPLACE (coalesce(replayed, false) AS replayed),
       CASE WHEN protocol_version > 1 THEN -2
            WHEN replayed THEN -1
            ELSE protocol_version + CASE WHEN merged THEN 0 ELSE 1000 END END AS precedence
FROM sourced
ANTI JOIN (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id, session, block, position, contributor
    FROM sourced
    WHERE block IS NOT NULL AND position IS NOT NULL
    GROUP BY ALL
    HAVING count(*) > 1
) AS contradicted USING (gpu, problem_id, kernel, kernel_hash, config_id, session, block, position, contributor);

-- One row for each config at each power limit and clock, computed from the rows with the highest precedence: the median
-- of the most careful tier of each session, then the median over a contributor's sessions, then the median over the
-- contributors, so that nobody counts more by measuring more. Before this, the costs of other people's rows are divided
-- by the scale of their GPU (`gpu_scale`): a slow board ranks configs correctly, but its times are not typical.
--
-- The 90 % interval covers the uncertainty within a session and the differences between sessions (`low_end`,
-- `high_end`), and in the same way the differences between contributors. `spread_low_s` and `spread_high_s` are the
-- lowest and highest latency of a contributor. `rescaled` is the number of contributors with a scale other than 1.
CREATE OR REPLACE VIEW answer AS
WITH scaled_rows AS NOT MATERIALIZED (
    SELECT row.*, row.latency_s / latency_factor AS on_scale_s, row.latency_low_s / latency_factor AS on_scale_low_s,
           row.latency_high_s / latency_factor AS on_scale_high_s, row.energy_j / energy_factor AS on_scale_j,
           row.energy_low_j / energy_factor AS on_scale_low_j, row.energy_high_j / energy_factor AS on_scale_high_j,
           row.power_w * latency_factor / energy_factor AS on_scale_w, latency_factor, energy_factor
    FROM (
        SELECT whole_gpu_rows.*,
               CASE WHEN merged AND latency_scale BETWEEN 0.1 AND 10 THEN latency_scale ELSE 1 END AS latency_factor,
               CASE WHEN merged AND energy_scale BETWEEN 0.1 AND 10 THEN energy_scale ELSE 1 END AS energy_factor
        FROM (SELECT *, coalesce(device_uuid_hash, '') AS board FROM whole_gpu_rows) AS whole_gpu_rows
        LEFT JOIN (
            SELECT gpu, contributor, board, any_value(latency_scale) AS latency_scale,
                   any_value(energy_scale) AS energy_scale
            FROM gpu_scale GROUP BY ALL
        ) AS scale USING (gpu, contributor, board)
    ) AS row
),
tier_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,
           precedence, protocol_version, replayed, merged, contributor, session,
           CASE tier WHEN 'screen' THEN 0 WHEN 'coarse' THEN 1 ELSE 2 END AS thoroughness,
           median(on_scale_s) AS latency_s, median(on_scale_low_s) AS latency_low_s,
           median(on_scale_high_s) AS latency_high_s,
           median(on_scale_j) AS energy_j, median(on_scale_low_j) AS energy_low_j,
           median(on_scale_high_j) AS energy_high_j, median(on_scale_w) AS power_w,
           bool_or(latency_factor <> 1 OR energy_factor <> 1) AS rescaled,
           max(measured_at) AS measured_at, max(device) AS device, max(measured_by) AS measured_by
    FROM scaled_rows
    WHERE outcome = 'ok'
    GROUP BY ALL
),
session_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,
           precedence, protocol_version, replayed, merged, contributor, session,
           arg_max_null(latency_s, thoroughness) AS latency_s,
           arg_max_null(latency_low_s, thoroughness) AS latency_low_s,
           arg_max_null(latency_high_s, thoroughness) AS latency_high_s,
           arg_max_null(energy_j, thoroughness) AS energy_j,
           arg_max_null(energy_low_j, thoroughness) AS energy_low_j,
           arg_max_null(energy_high_j, thoroughness) AS energy_high_j,
           arg_max_null(power_w, thoroughness) AS power_w, bool_or(rescaled) AS rescaled,
           arg_max_null(measured_at, thoroughness) AS measured_at,
           arg_max_null(device, thoroughness) AS device, arg_max_null(measured_by, thoroughness) AS measured_by
    FROM tier_answer
    GROUP BY ALL
),
contributor_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,
           precedence, protocol_version, replayed, merged, contributor,
           median(latency_s) AS latency_s,
           low_end(latency_s, latency_low_s) AS latency_low_s,
           high_end(latency_s, latency_high_s) AS latency_high_s,
           median(energy_j) AS energy_j,
           low_end(energy_j, energy_low_j) AS energy_low_j,
           high_end(energy_j, energy_high_j) AS energy_high_j,
           median(power_w) AS power_w, bool_or(rescaled) AS rescaled,
           count(*) AS sessions, count(energy_j) AS energy_sessions,
           max(measured_at) AS measured_at, max(device) AS device, max(measured_by) AS measured_by
    FROM session_answer
    GROUP BY ALL
),
protocol_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id,
           power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, precedence, protocol_version, replayed, merged,
           median(latency_s) AS latency_s,
           low_end(latency_s, latency_low_s) AS latency_low_s,
           high_end(latency_s, latency_high_s) AS latency_high_s,
           median(energy_j) AS energy_j,
           low_end(energy_j, energy_low_j) AS energy_low_j,
           high_end(energy_j, energy_high_j) AS energy_high_j,
           median(power_w) AS power_w,
           CAST(sum(sessions) AS BIGINT) AS sessions, CAST(sum(energy_sessions) AS BIGINT) AS energy_sessions,
           count(*) AS contributors, min(latency_s) AS spread_low_s, max(latency_s) AS spread_high_s,
           count_if(rescaled) AS rescaled,
           max(measured_at) AS measured_at, max(device) AS device, max(measured_by) AS measured_by
    FROM contributor_answer
    GROUP BY ALL
)
SELECT * EXCLUDE (precedence)
FROM protocol_answer
QUALIFY precedence = max(precedence) OVER (
    PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id,
                 power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
);

-- For each GPU, problem, power limit and clocks: the configs with the lowest latency, energy and energy-delay product.
CREATE OR REPLACE VIEW best AS
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
    PARTITION BY objective, gpu, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
    ORDER BY score, latency_s, kernel, kernel_hash, config_id
) = 1;

-- The Pareto front of latency and energy for each GPU, problem, power limit and clocks: the configs that no other config
-- beats in one cost without being worse in the other. Configs with equal costs are all on the front.
CREATE OR REPLACE VIEW front AS
SELECT *
FROM answer
WHERE energy_j IS NOT NULL
QUALIFY energy_j = min(energy_j) OVER (
        PARTITION BY gpu, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
        ORDER BY latency_s RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
    AND latency_s = min(latency_s) OVER (
        PARTITION BY gpu, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, energy_j
    );
