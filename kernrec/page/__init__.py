"""Show answers in a browser: on a page that this machine serves, or in a report, a single file that works offline.

answers.py        answers to the page's requests: Pareto fronts, explanations of configs, totals of networks
front.py          the configs of a problem on a GPU as points (latency, energy), with their Pareto front
document.py       the HTML document, which loads scripts and style, or contains them and all answers (a report)
server.py         HTTP server for the document and the answers, reachable only from this machine
static/           HTML, style and scripts of the page

The page's script only keeps the reader's selection and draws charts. The recommender computes all figures.
"""
