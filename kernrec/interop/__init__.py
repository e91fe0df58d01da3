"""Read files of other tuners: results (`read_results`) and kernel descriptions (`t1`).

`read_results` reads any file of results, and `results.to_measurements` converts them to measurements. Files from others
are untrusted: their data may be wrong, truncated or hostile. The package imports none of its modules, because queries
only need workloads.
"""
