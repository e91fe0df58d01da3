"""Audits of serving engines: their tuned files for a model and a card, those missing, and the gain that each promises.

    config.json -> ServedModel -> the files that the engine looks for -> shipped or missing
                               -> each missing one: the engine's own config against the best predicted -> a verdict

Facts about an engine (names of files, defaults, which kernel it takes first) are of the releases that
`kernrec.recommender.serving.shipped_files` names.
"""
