"""Files of other tuners: results, in (read_results.py has the table of formats) and out, and descriptions (t1.py).

`read_results` reads any file of results, `results.to_measurements` makes measurements of them, and `t4.write_t4` writes
measurements for other tools. Files of others are untrusted: their data may be wrong, cut short or hostile. Queries read
workloads here, so the package itself imports none of its modules.
"""
