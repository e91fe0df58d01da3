"""Write launches of Triton functions to call files for `kernrec analyze`; the program needs no GPU.

>>> with kernrec.triton.capture("calls") as captured:
...     layer(torch.zeros(8, 4096))  # on CPU tensors, fake or meta tensors, or a GPU
>>> kernrec.analyze(captured.files[0], gpu="h100")

Hooks in `JITFunction.run` and in the autotuner record every `@triton.jit` launch. The autotuner's hook runs before any
measurement, so a call has all configs. Without a GPU, launches do not run, and a program's results are undefined. With
a GPU, the program runs as usual.
"""
