"""Write launches of Triton functions as call files for `kernrec analyze`, from a program that runs without a GPU.

>>> import kernrec.triton >>> with kernrec.triton.capture("calls") as captured:
...     layer(torch.zeros(8, 4096))  # on CPU tensors, fake or meta tensors, or a GPU
>>> kernrec.analyze(captured.files[0], gpu="h100")

Hooks in `JITFunction.run` and in the autotuner, before it measures, record every `@triton.jit` launch, so a call has
all its configs. Without a GPU, launches do not run, and a program's results are undefined. With a GPU, the program runs
as usual.
"""
