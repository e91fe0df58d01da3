-- Measurements that other people made, and that came in a file or bundle. Rows without an entry are the user's own, as
-- are all rows that are older than this migration. Exports and merges do not copy this table.

CREATE TABLE merged (
    measurement_id VARCHAR NOT NULL,
    gpu            VARCHAR NOT NULL,   -- copied from the measurement, so that queries about one problem read a part of it
    problem_id     VARCHAR NOT NULL,
    signer         VARCHAR NOT NULL    -- public key that signed the bundle; empty for a file or an unsigned bundle
);
