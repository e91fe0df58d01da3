"""Run CUDA programs without a GPU, and write each kernel launch with its arguments to a file, the call file.

The program loads the libraries in `native/` instead of NVIDIA's CUDA runtime and driver. These libraries send each
launch through a socket to a `Session`, which runs the launch in the emulator.
"""
