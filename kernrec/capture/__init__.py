"""Run CUDA programs without a GPU, and record their kernel launches as call files.

A captured program loads replacements for NVIDIA's CUDA runtime and driver libraries (`native/`). They send its launches
through a socket to a `Session`, which runs the launches in the emulator.
"""
