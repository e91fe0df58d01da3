"""What PTX says without being executed: cost of issue, register pressure, dependence on data."""
