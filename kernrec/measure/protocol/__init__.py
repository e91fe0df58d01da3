"""Implement the measuring protocol: probe, correctness, latency, energy, drift."""
