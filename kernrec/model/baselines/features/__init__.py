"""Features of each op that backends run, one module per op, as described in `kernrec.model.baselines.bound`."""
