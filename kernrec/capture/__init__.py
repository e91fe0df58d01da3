"""Run CUDA programs without a GPU, and record their kernel launches as call files.

The folder `native/` contains replacements for NVIDIA's CUDA runtime and driver libraries. A captured program loads
these replacements, which send its launches through a socket to a `Session`. The session runs the launches in the
emulator.
"""
