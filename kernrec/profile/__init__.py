"""Static profiles: a kernel's configs are compiled, emulated on sampled blocks or probes, and fitted; no GPU."""
