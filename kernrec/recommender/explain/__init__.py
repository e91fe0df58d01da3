"""Explain where the time and energy of a config go, and find the change of the config that gains most."""
