"""The measuring protocol: probe, correctness, latency, energy, drift."""
