-- Add a column that states what the result was compared with: the op's reference in float64, the spec's reference, or the
-- output of another config. It is NULL if there was no comparison, and in older rows.

ALTER TABLE measurement ADD COLUMN checked_against VARCHAR;

-- Create the view again, because its `*` stands for the columns that existed when it was created.
CREATE OR REPLACE VIEW spoken AS
SELECT *, coalesce(measured_by LIKE 'kernrec % replay', false) AS replayed,
       CASE WHEN replayed THEN -1 ELSE protocol_version END AS standing
FROM measurement
WHERE mig IS DISTINCT FROM true;
