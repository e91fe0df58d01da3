"""Analyze a user's kernel: select the configs to profile, profile them, and recommend the best ones."""
