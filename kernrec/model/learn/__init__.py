"""Boosted trees that correct the analytical model: features, intervals, model files, adaptation."""
