"""Define constants for intervals of normally distributed values."""

DEVIATIONS = 1.645
"""Half-width of a 90 % interval, in standard deviations."""
