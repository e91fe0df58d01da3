"""Define the commands of `python tools/bench.py`, which measure kernrec's time."""
