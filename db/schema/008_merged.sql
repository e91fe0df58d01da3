-- Which rows of the log came from others, in a file or a bundle. This is no content: it says how a row came to be here,
-- and leaves with none. Of rows without an entry the user is the source; all rows are, that were here before this step.

CREATE TABLE merged (
    measurement_id VARCHAR NOT NULL,
    gpu            VARCHAR NOT NULL,   -- as in the measurement: a query about one problem reads a part of this table
    problem_id     VARCHAR NOT NULL,
    signer         VARCHAR NOT NULL    -- public key of who signed the bundle; empty: a file, or a bundle nobody signed
);
