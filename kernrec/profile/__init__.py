"""Compute static profiles without a GPU: compile configs, emulate some thread blocks, and fit event counts."""
