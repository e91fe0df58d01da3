"""Answer requests about whole networks: recommend a config for each layer, compare backends, and compute totals."""
