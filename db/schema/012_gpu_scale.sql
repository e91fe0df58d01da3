-- How the costs of each contributor's GPU compare with those of other GPUs of its model, estimated from configs that
-- several contributors measured (kernrec/store/gpu_scales.py). kernrec computes this table from the log whenever other
-- people's rows are added or removed. It replaces the table `card_scale`.

CREATE TABLE gpu_scale (
    gpu           VARCHAR NOT NULL,
    contributor   VARCHAR NOT NULL,  -- as in the view `whole_gpu_rows`
    board         VARCHAR NOT NULL,  -- `device_uuid_hash` of its measurements; empty if they have none
    latency_scale DOUBLE NOT NULL CHECK (latency_scale > 0),
    energy_scale  DOUBLE CHECK (energy_scale > 0),  -- NULL if there are too few energies
    latency_ratio DOUBLE NOT NULL CHECK (latency_ratio > 0),  -- median ratio; the scale is closer to 1
    energy_ratio  DOUBLE CHECK (energy_ratio > 0),
    configs       BIGINT NOT NULL CHECK (configs > 0)  -- number of configs behind the estimate
);
INSERT INTO gpu_scale SELECT * FROM card_scale;
DROP VIEW IF EXISTS whole_card_rows;
DROP TABLE card_scale;
