-- Log of withdrawn measurements. Rows are only added, never changed, and merging is a set union. Answers no longer use a
-- measurement that is listed here (views.sql), but it stays in the log. A row may name a measurement that is added later,
-- or never. kernrec only adds retractions that their signer was allowed to make.

CREATE TABLE retraction (
    retraction_id  VARCHAR NOT NULL,
    measurement_id VARCHAR NOT NULL,
    reason         VARCHAR NOT NULL,   -- one line for readers of the log; may be empty
    signer         VARCHAR NOT NULL,   -- public key of the person who withdrew it; empty if unsigned
    retracted_at   TIMESTAMP NOT NULL, -- UTC
    signature      VARCHAR NOT NULL    -- Ed25519, by the signer, of the columns between the first and this one
);
