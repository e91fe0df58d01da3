"""Read files that other tools wrote: results of autotuners and profilers, kernel descriptions, models and workloads.

All files are untrusted: their data may be wrong, truncated or malicious.
"""
