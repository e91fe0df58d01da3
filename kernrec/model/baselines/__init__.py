"""Predict the time and power of backends' kernels for a problem on a GPU, with trees that correct a roofline."""
