"""Analyze a user's kernel: select configs to profile, and rank its launch configurations."""
