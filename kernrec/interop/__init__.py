"""Read files that other tools wrote: results of autotuners and profilers, kernel descriptions, models and workloads.

`read_results` reads a file of results in any supported format, and `results.to_measurements` converts the results to
measurements. `t1` reads kernel descriptions. All files are untrusted: their data may be wrong, truncated or malicious.

This package does not import its modules, so that a query imports only the modules that it needs.
"""
