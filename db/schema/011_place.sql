-- Bundles that were pulled from places (kernrec/store/share), and measurements that their signers withdrew. Like `merged`,
-- these tables are not copied by exports and merges. A row that came with two bundles is in `merged` twice.

ALTER TABLE merged ADD COLUMN bundle VARCHAR;  -- name of the bundle at its place; NULL if the row came in another way

CREATE TABLE bundle (
    name         VARCHAR NOT NULL,   -- name of the bundle or withdrawal at its place
    signer       VARCHAR NOT NULL,   -- public key
    created_at   TIMESTAMP NOT NULL, -- UTC
    licence      VARCHAR NOT NULL,
    measurements BIGINT NOT NULL     -- 0 for a withdrawal
);

CREATE TABLE withdrawn (
    likeness     VARCHAR NOT NULL,   -- hash of the measurement without its private columns
    signer       VARCHAR NOT NULL,   -- public key of the person who withdrew it
    session      VARCHAR NOT NULL,   -- session of the measurement; empty if it has none
    reason       VARCHAR NOT NULL,
    withdrawn_at TIMESTAMP NOT NULL, -- UTC
    shared       BOOLEAN NOT NULL    -- whether the signer is known to have shared the measurement
);
