"""Compute static profiles without a GPU: compile configs, emulate probes or a sample of blocks, and fit counts."""
