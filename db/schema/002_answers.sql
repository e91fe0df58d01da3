-- Answers of the log know their 90 % interval, and a locked memory clock keeps them apart like a locked core clock.
--
-- The interval of an answer covers both what a session knows of itself and what sessions differ by: from the lesser of
-- the median of its sessions' lower bounds and the 5 % quantile of its sessions' medians, to the greater of the medians
-- of the upper bounds and the 95 % quantile. One session that states no interval leaves it NULL.
--
-- What says nothing of a whole card, or was not measured at all, no longer passes for a measurement of it.
--
-- A MIG slice has the full card's name but a part of its units: its rows stay in the log and answer nothing. A replay
-- says again, with noise, what another row says (kernrec/measure/device/replay.py): it goes after everything measured and
-- never counts beside it.

DROP VIEW front;
DROP VIEW best;
DROP VIEW answer;

-- The rows that speak of whole cards. standing: the protocol's version, below all of them for what was replayed.
CREATE VIEW spoken AS
SELECT *, coalesce(measured_by LIKE 'kernrec % replay', false) AS replayed,
       CASE WHEN replayed THEN -1 ELSE protocol_version END AS standing
FROM measurement
WHERE mig IS DISTINCT FROM true;

-- The answer of the log for each config, at each power limit and clock it ran at: of the newest protocol (what was
-- replayed: only where nothing was measured), in each session the most thorough tier, the median of its rows; then the
-- median over sessions.
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

-- For each GPU, problem, power limit and clocks: the answers of least latency, least energy, least energy x delay.
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

-- The latency/energy Pareto front of each GPU, problem, power limit and clocks: no other answer is at least as good in
-- both and better in one. Answers equal in both are all on it.
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
