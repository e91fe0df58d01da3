"""Show answers in a browser: on a page that this machine serves, or in a report, a single file that works offline.

The page's script keeps the reader's selection and draws charts. The recommender computes all figures.
"""
