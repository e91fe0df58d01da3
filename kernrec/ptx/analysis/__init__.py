"""Analyze PTX statically: issue cost, register pressure and data dependence."""
