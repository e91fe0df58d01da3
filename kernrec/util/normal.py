"""The normal distribution, as far as intervals stand on it."""

DEVIATIONS = 1.645
"""A 90 % interval is so many standard deviations to either side; of a mean, so many standard errors."""
