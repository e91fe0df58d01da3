"""Compute static profiles without a GPU: compile configs, emulate sampled blocks or probes, and fit counts."""
