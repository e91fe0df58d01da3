"""Features of problems that backends run, with one module per op. `baselines.bound` describes these modules."""
