"""Audit serving engines (vLLM, SGLang): find the tuned config files that are missing for a model and a GPU, and predict
the gain from each file.
"""
