"""Compare kernrec with recordings of real GPUs and print tables of metrics (`python tools/evidence`)."""
