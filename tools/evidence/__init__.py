"""kernrec beside what others recorded on real GPUs: the commands of `python tools/evidence`."""
