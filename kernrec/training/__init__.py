"""Train models, fit calibrations and evaluate them, from measured rows."""
