-- Add 90 % intervals to the view `answer`, and distinguish locked memory clocks as well as locked core clocks.
--
-- The interval covers the uncertainty within a session and the differences between sessions. Its lower end is the median
-- of the sessions' lower ends or the 5 % quantile of the sessions' medians, whichever is lower. The upper end is defined
-- in the same way. The interval is NULL for a single session without an interval.
--
-- Exclude rows of MIG slices, which have the GPU's name but only a part of its units. Replayed rows, which repeat other
-- rows with noise (kernrec/measure/device/replay.py), are used only if there are no measured ones.

DROP VIEW front;
DROP VIEW best;
DROP VIEW answer;

-- Rows of whole GPUs. `standing` is the version of the protocol, or -1 for replayed rows.
CREATE VIEW spoken AS
SELECT *, coalesce(measured_by LIKE 'kernrec % replay', false) AS replayed,
       CASE WHEN replayed THEN -1 ELSE protocol_version END AS standing
FROM measurement
WHERE mig IS DISTINCT FROM true;

-- One row for each config at each power limit and clock, from rows of the newest protocol (replayed rows only if there
-- are no measured ones): the median of the most careful tier of each session, then the median over sessions.
CREATE VIEW answer AS
WITH ranked AS (
    SELECT *, CASE tier WHEN 'screen' THEN 0 WHEN 'coarse' THEN 1 ELSE 2 END AS thoroughness
    FROM spoken
    WHERE outcome = 'ok'
    QUALIFY standing = max(standing) OVER (
        PARTITION BY gpu, problem_id, kernel, kernel_hash, config_id,
                     power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz
    )
),
by_session AS (
    SELECT *
    FROM ranked
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
    FROM by_session
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

-- The Pareto front of latency and energy for each GPU, problem, power limit and clocks: no other config is at least as
-- good in both costs and better in one. Configs with equal costs are all on the front.
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
