"""Audit serving engines: tuned files for a model and a GPU, missing files, and the gain that each promises.

    config.json -> ServedModel -> the files that the engine looks for -> shipped or missing
                               -> each missing one: the engine's default config against the best predicted -> a verdict

File names, defaults and the order of kernels are those of the engine releases that
`kernrec.recommender.serving.shipped_files` names.
"""
