"""Networks: every layer answered, backends beside them, and totals: costs, memory, power limits, a year's bill."""
