"""Commands of `python tools/bench.py`, which measure kernrec's time and memory."""
