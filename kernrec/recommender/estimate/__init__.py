"""Estimate the cost of each candidate from the analytical model, trained models and measurements."""
