"""Answer requests about whole networks: recommend a config for each layer, compare backends, and compute totals.

Totals include time, energy, memory, power and the yearly bill.
"""
