"""Explain where the time and energy of a config go, and find the most profitable change of the config."""
