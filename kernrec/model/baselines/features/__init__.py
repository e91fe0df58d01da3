"""Features of each op that backends run, with one module per op. `kernrec.model.baselines.bound` describes them."""
