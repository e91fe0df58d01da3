"""Static profiles: a kernel's configs compiled, emulated on sampled blocks or probes, and fitted. No GPU."""
