-- Add columns for facts that older rows state in texts.
--
-- block_open: the config ran, but the run ended before the reference kernels were measured again, so it is unknown
-- whether the GPU had drifted. Answers use the row, and the next run measures the config again. Older rows state this in
-- `error`.
--
-- replayed: the row repeats a recorded row with noise (kernrec/measure/device/replay.py). Older rows state this at the
-- end of `measured_by`.
--
-- Both columns are true or NULL, so that the keys of all other rows do not change. kernrec/store/schema.py computes the
-- keys of the changed rows again after this migration.

ALTER TABLE measurement ADD COLUMN block_open BOOLEAN;
ALTER TABLE measurement ADD COLUMN replayed BOOLEAN;

UPDATE measurement SET block_open = true, error = NULL
WHERE outcome = 'ok' AND error = 'the run ended before the reference kernels were looked at again';

UPDATE measurement SET replayed = true, measured_by = regexp_replace(measured_by, ' replay$', '')
WHERE measured_by LIKE 'kernrec % replay';

DROP VIEW front;
DROP VIEW best;
DROP VIEW answer;
DROP VIEW spoken;

-- Rows of whole GPUs, measured or replayed. Answers use only the rows of a config with the highest `precedence`: the
-- version of the protocol, or a lower number for replayed rows.
CREATE VIEW whole_card_rows AS
SELECT * REPLACE (coalesce(replayed, false) AS replayed),
       CASE WHEN replayed THEN -1 ELSE protocol_version END AS precedence
FROM measurement
WHERE mig IS DISTINCT FROM true;

-- One row for each config at each power limit and clock, from the rows with the highest precedence: the median of the
-- most careful tier of each session, then the median over sessions. 002_answers.sql describes the 90 % interval.
CREATE VIEW answer AS
WITH of_highest_precedence AS (
    SELECT *, CASE tier WHEN 'screen' THEN 0 WHEN 'coarse' THEN 1 ELSE 2 END AS thoroughness
    FROM whole_card_rows
    WHERE outcome = 'ok'
    QUALIFY precedence = max(precedence) OVER (
        PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id,
                     power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
    )
),
of_most_thorough_tier AS (
    SELECT *
    FROM of_highest_precedence
    QUALIFY thoroughness = max(thoroughness) OVER (
        PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id,
                     power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, session
    )
),
session_answer AS (
    SELECT gpu, problem_id, kernel, kernel_hash, config_id,
           power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, protocol_version, replayed, session,
           median(latency_s) AS latency_s, median(latency_low_s) AS latency_low_s,
           median(latency_high_s) AS latency_high_s,
           median(energy_j) AS energy_j, median(energy_low_j) AS energy_low_j, median(energy_high_j) AS energy_high_j,
           median(power_w) AS power_w, max(measured_at) AS measured_at, max(device) AS device
    FROM of_most_thorough_tier
    GROUP BY ALL
)
SELECT gpu, problem_id, kernel, kernel_hash, config_id,
       power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz, protocol_version, replayed,
       median(latency_s) AS latency_s,
       CASE WHEN count(latency_low_s) > 0 OR count(latency_s) > 1
            THEN least(median(latency_low_s), quantile_cont(latency_s, 0.05)) END AS latency_low_s,
       CASE WHEN count(latency_high_s) > 0 OR count(latency_s) > 1
            THEN greatest(median(latency_high_s), quantile_cont(latency_s, 0.95)) END AS latency_high_s,
       median(energy_j) AS energy_j,
       CASE WHEN count(energy_low_j) > 0 OR count(energy_j) > 1
            THEN least(median(energy_low_j), quantile_cont(energy_j, 0.05)) END AS energy_low_j,
       CASE WHEN count(energy_high_j) > 0 OR count(energy_j) > 1
            THEN greatest(median(energy_high_j), quantile_cont(energy_j, 0.95)) END AS energy_high_j,
       median(power_w) AS power_w,
       count(*) AS sessions, count(energy_j) AS energy_sessions,
       max(measured_at) AS measured_at, max(device) AS device
FROM session_answer
GROUP BY ALL;

-- For each GPU, problem, power limit and clocks: the configs with the lowest latency, energy and energy-delay product.
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
    PARTITION BY objective, gpu, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
    ORDER BY score, latency_s, kernel, kernel_hash, config_id
) = 1;

-- The Pareto front of latency and energy for each GPU, problem, power limit and clocks: the configs that no other config
-- beats in one cost without being worse in the other. Configs with equal costs are all on the front.
CREATE VIEW front AS
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
