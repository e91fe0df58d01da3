-- A row says what its result was held against: the op's reference in float64, that of the spec, or the output of another
-- config. NULL where it was held against nothing, and in rows of before, which had the op's or came from elsewhere.

ALTER TABLE measurement ADD COLUMN checked_against VARCHAR;

-- A view's `*` is of the columns there were when it was made.
CREATE OR REPLACE VIEW spoken AS
SELECT *, coalesce(measured_by LIKE 'kernrec % replay', false) AS replayed,
       CASE WHEN replayed THEN -1 ELSE protocol_version END AS standing
FROM measurement
WHERE mig IS DISTINCT FROM true;
