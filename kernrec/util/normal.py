"""Normal distribution, as far as intervals use it."""

DEVIATIONS = 1.645
"""Half-width of a 90 % interval in standard deviations; for a mean, in standard errors."""
