"""Boosted trees that correct the prior: features, intervals, model files, adaptation."""
