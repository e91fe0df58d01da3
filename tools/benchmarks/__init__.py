"""How long kernrec takes: the commands of `python tools/bench.py`."""
