"""Files of other tuners: T4 results and Kernel Tuner's caches, in and out, and T1 descriptions of kernels (t1.py).

`read_results` reads any file of results, `results.to_measurements` makes measurements of them, and `t4.write_t4` writes
measurements for other tools. Files of others are untrusted: their data may be wrong, cut short or hostile. Queries read
workloads here, so the package itself imports none of its modules.
"""
