"""Audit serving engines: find the tuned config files that are missing for a model and a GPU, and predict their gain."""
