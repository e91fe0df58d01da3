"""Boosted trees that correct the analytical model, with their features, intervals, model files and adaptation."""
