"""Train models and fit calibrations of the analytical model to measurements, and evaluate both."""
