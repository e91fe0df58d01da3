"""Commands of `python tools/evidence`. Each module has a function `run`, which prints tables."""
