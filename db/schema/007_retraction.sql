-- Measurements that were taken back. A log like `measurement`: rows are added, never changed, and merging is a set union.
-- A measurement that a row here names answers no more (views.sql) and stays where it is. A row may name a measurement
-- that comes later, or never; which retractions of others are believed is decided before they are added
-- (kernrec/store/retractions.py).

CREATE TABLE retraction (
    retraction_id  VARCHAR NOT NULL,
    measurement_id VARCHAR NOT NULL,
    reason         VARCHAR NOT NULL,   -- one line for whoever reads the log; may be empty
    signer         VARCHAR NOT NULL,   -- public key of who took it back; empty: nobody signed it
    retracted_at   TIMESTAMP NOT NULL, -- UTC
    signature      VARCHAR NOT NULL    -- Ed25519, by the signer, of the columns between the first and this one
);
