"""Features of each op that stacks run: a module an op, as `kernrec.model.vendor.bound` describes it."""
