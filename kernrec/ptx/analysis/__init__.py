"""Static analysis of PTX: issue cost, register pressure, data dependence."""
