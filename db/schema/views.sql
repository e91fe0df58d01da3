-- What the log says, derived from the table `measurement`. kernrec computes these itself from this text and never uses
-- the views of a file, which may be somebody else's; a file has them for whoever opens it with DuckDB. Macros are
-- replaced by what they stand for before that (kernrec/store/schema.py), so no file has any.

-- The ends of the 90 % interval of what several sessions or contributors say: their median end, or the quantile of
-- their values where that is farther out; NULL where only one says something, and no interval.
CREATE MACRO low_end(amount, low) AS
    CASE WHEN count(low) > 0 OR count(amount) > 1 THEN least(median(low), quantile_cont(amount, 0.05)) END;
CREATE MACRO high_end(amount, high) AS
    CASE WHEN count(high) > 0 OR count(amount) > 1 THEN greatest(median(high), quantile_cont(amount, 0.95)) END;

-- The measurements that nobody took back.
CREATE OR REPLACE VIEW unretracted_rows AS
SELECT * FROM measurement ANTI JOIN retraction USING (measurement_id);

-- Whose these are. merged: whether they came from others; contributor: 'own' for the user's, else the public key of who
-- signed what was merged or pulled, empty for all that nobody signed. Of a row that several share it is the first one's.
CREATE OR REPLACE VIEW sourced_rows AS
SELECT unretracted_rows.*, signer IS NOT NULL AS merged, coalesce(signer, 'own') AS contributor
FROM unretracted_rows
LEFT JOIN (
    -- Once for each row, whatever a file of somebody else says.
    SELECT measurement_id, min(signer) AS signer FROM merged GROUP BY measurement_id
) AS source USING (measurement_id);

-- The rows that were measured on, or replayed of, whole cards: a MIG slice has the card's name but only a part of its
-- units. Rows of one contributor that claim to be the same measurement (the same position in the same block of a
-- session) and differ contradict each other: all of them stay in the log, and none answers. Nobody can contradict
-- somebody else's row.
-- precedence: of the rows of a config only those of the highest precedence answer. Own rows come before merged ones;
-- among these counts the version of the protocol. Lower than any version are replayed rows, and lower still those of a
-- version that this kernrec does not know (NEWEST_PROTOCOL, kernrec/store/measurement.py).
CREATE OR REPLACE VIEW whole_card_rows AS
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

-- The answer for each config at each power limit and clock: of the rows of the highest precedence, in each session those
-- of the most thorough tier, their median; of each contributor the median over the sessions; then the median over the
-- contributors, so that nobody counts more for measuring more. Before, rows of others are put on the scale of their
-- kind of card (`card_scale`): a card that is slower than its like says which config is better, not how long it takes.
--
-- The 90 % interval of an answer covers the uncertainty within a session and the differences between sessions
-- (`low_end`, `high_end`), and the same again of the contributors. spread_low_s and spread_high_s are the least and the greatest of the contributors'
-- latencies, rescaled how many of them are on another scale than their own.
CREATE OR REPLACE VIEW answer AS
WITH scaled_rows AS NOT MATERIALIZED (
    SELECT row.*, row.latency_s / slower AS on_scale_s, row.latency_low_s / slower AS on_scale_low_s,
           row.latency_high_s / slower AS on_scale_high_s, row.energy_j / thirstier AS on_scale_j,
           row.energy_low_j / thirstier AS on_scale_low_j, row.energy_high_j / thirstier AS on_scale_high_j,
           row.power_w * slower / thirstier AS on_scale_w, slower, thirstier
    FROM (
        SELECT whole_card_rows.*,
               CASE WHEN merged AND latency_scale BETWEEN 0.1 AND 10 THEN latency_scale ELSE 1 END AS slower,
               CASE WHEN merged AND energy_scale BETWEEN 0.1 AND 10 THEN energy_scale ELSE 1 END AS thirstier
        FROM (SELECT *, coalesce(device_uuid_hash, '') AS card FROM whole_card_rows) AS whole_card_rows
        LEFT JOIN (
            SELECT gpu, contributor, card, any_value(latency_scale) AS latency_scale,
                   any_value(energy_scale) AS energy_scale
            FROM card_scale GROUP BY ALL
        ) AS scale USING (gpu, contributor, card)
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
           bool_or(slower <> 1 OR thirstier <> 1) AS rescaled,
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

-- For each GPU, problem, power limit and clocks: the answers of least latency, least energy, least energy x delay.
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

-- The latency/energy Pareto front of each GPU, problem, power limit and clocks: the answers that no other answer beats
-- in one cost without losing in the other. Answers equal in both are all on it.
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
