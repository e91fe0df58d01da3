"""Train models, fit calibrations of the analytical model, and evaluate both on measurements."""
