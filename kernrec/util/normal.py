"""Define constants of the normal distribution for intervals."""

DEVIATIONS = 1.645
"""Half-width of a 90 % interval in standard deviations; for a mean, in standard errors."""
