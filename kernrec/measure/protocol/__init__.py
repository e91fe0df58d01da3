"""Implement the protocol for measuring a config: sensor probe, correctness, latency, energy and drift."""
