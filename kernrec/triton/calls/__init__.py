"""Launches of Triton functions written as calls that `kernrec analyze` reads, from a program that runs without a GPU.

>>> import kernrec.triton
>>> with kernrec.triton.capture("calls") as captured:
...     layer(torch.zeros(8, 4096))  # on CPU tensors, fake or meta tensors, or a GPU
>>> kernrec.analyze(captured.files[0], gpu="h100")

Every `@triton.jit` launch is caught where it passes: in `JITFunction.run`, and in the autotuner before it measures, so
that a call has all its configs. Without a GPU the launch itself does not run, and results of a program are whatever is
in its memory; with one it runs as always.
"""
