"""Read files of other tuners: results (formats in read_results.py) and descriptions (t1.py).

`read_results` reads any file of results, and `results.to_measurements` converts them to measurements. Files from others
are untrusted: their data may be wrong, truncated or hostile. Queries read workloads here, so the package itself imports
none of its modules.
"""
