"""The commands of `python tools/evidence`: each module has a `run`, and prints tables."""
