"""A user's own kernel: which configs to profile, and the ranking of its launch configurations."""
