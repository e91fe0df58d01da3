-- By whose card: its costs over those of its kind, estimated from the configs that several contributors measured
-- (kernrec/store/card_scales.py). This is no content: it is computed from the log whenever rows of others come or go.

CREATE TABLE card_scale (
    gpu           VARCHAR NOT NULL,
    contributor   VARCHAR NOT NULL,  -- as in the view `whole_card_rows`
    card          VARCHAR NOT NULL,  -- `device_uuid_hash` of its measurements; empty where they have none
    latency_scale DOUBLE NOT NULL CHECK (latency_scale > 0),
    energy_scale  DOUBLE CHECK (energy_scale > 0),  -- NULL: too few energies to say
    latency_ratio DOUBLE NOT NULL CHECK (latency_ratio > 0),  -- the median ratio; the scale is nearer to 1
    energy_ratio  DOUBLE CHECK (energy_ratio > 0),
    configs       BIGINT NOT NULL CHECK (configs > 0)  -- that this stands on
);
