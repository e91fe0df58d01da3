"""Write launches of Triton functions to call files, which `kernrec analyze` reads. The program needs no GPU.

>>> with kernrec.triton.capture("calls") as captured:
...     layer(torch.zeros(8, 4096))  # on CPU tensors, fake or meta tensors, or a GPU
>>> kernrec.analyze(captured.files[0], gpu="h100")

The call file of an autotuned launch lists all its configs. Without a GPU, launches do not run, so the results of the
program are undefined. With a GPU, the program runs as usual.
"""
