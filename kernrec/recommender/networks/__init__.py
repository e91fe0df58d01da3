"""Networks: answer every layer, compare backends and add up cost, memory, power and yearly bill."""
