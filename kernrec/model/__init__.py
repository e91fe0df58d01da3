"""Predict costs: analytical model, trained models, intervals, baselines, and search."""
