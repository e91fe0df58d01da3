"""Compare kernrec with recordings of real GPUs: recordings x splits x metrics -> tables (`python tools/evidence`)."""
