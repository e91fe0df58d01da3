"""From measured rows to models, calibrations and evaluations."""
