"""Devices: CUDA, replayed, simulated and faulty ones behind one interface."""
