"""The cost of each candidate: prior, model correction and measured rows made into one."""
