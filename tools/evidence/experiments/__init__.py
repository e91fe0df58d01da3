"""Define the commands of `python tools/evidence`: each module has a function `run` that prints tables."""
