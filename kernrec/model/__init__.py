"""Predict costs: the analytical model, trained models, intervals, baselines, and search."""
