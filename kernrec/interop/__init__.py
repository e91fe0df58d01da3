"""Read and write files of other tuners: results (formats in read_results.py) and descriptions (t1.py).

`read_results` reads any file of results, `results.to_measurements` converts them to measurements, and `t4.write_t4`
writes measurements for other tools. Files from others are untrusted: their data may be wrong, truncated or hostile.
Queries read workloads here, so the package itself imports none of its modules.
"""
