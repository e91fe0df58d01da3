"""Define constants of the normal distribution that intervals use."""

DEVIATIONS = 1.645
"""Half-width of a 90 % interval, in standard deviations."""
