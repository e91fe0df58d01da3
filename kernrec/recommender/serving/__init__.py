"""Audit serving engines (vLLM, SGLang): find the tuned config files that are missing for a model and a GPU, and predict
what each file would gain.

    config.json -> ServedModel -> the files that the engine looks for -> shipped or missing
                               -> each missing file: the engine's default config against the best predicted -> a verdict

File names, default configs and the order in which engines prefer kernels follow the engine releases that
`kernrec.recommender.serving.engines` and `engine_defaults` name.
"""
