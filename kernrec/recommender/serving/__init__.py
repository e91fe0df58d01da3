"""Audit serving engines: find missing tuned files for a model and a GPU, and predict the gain of each file.

    config.json -> ServedModel -> the files that the engine looks for -> shipped or missing
                               -> each missing file: the engine's default config against the best predicted -> a verdict

File names, defaults and the order of kernels follow the engine releases that
`kernrec.recommender.serving.tuned_files` names.
"""
