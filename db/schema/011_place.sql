-- Bundles that were pulled from places (kernrec/store/share), and what their signers withdrew. Like `merged`, this is no
-- content: it says how rows came to be here, and leaves with none. A row that came with two bundles is in `merged` twice.

ALTER TABLE merged ADD COLUMN bundle VARCHAR;  -- name of the bundle at its place; NULL: the row came in another way

CREATE TABLE bundle (
    name         VARCHAR NOT NULL,   -- of the bundle or withdrawal at its place
    signer       VARCHAR NOT NULL,   -- public key
    created_at   TIMESTAMP NOT NULL, -- UTC
    licence      VARCHAR NOT NULL,
    measurements BIGINT NOT NULL     -- of a withdrawal 0
);

CREATE TABLE withdrawn (
    likeness     VARCHAR NOT NULL,   -- hash of the measurement without its private columns
    signer       VARCHAR NOT NULL,   -- public key of who withdrew it
    session      VARCHAR NOT NULL,   -- of the measurement; empty: it has none
    reason       VARCHAR NOT NULL,
    withdrawn_at TIMESTAMP NOT NULL, -- UTC
    shared       BOOLEAN NOT NULL    -- whether the signer is known to have shared the measurement
);
