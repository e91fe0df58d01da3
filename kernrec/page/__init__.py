"""Show answers in a browser: on a page served from this machine, or in one file that works offline.

answers.py        answers to the page's requests by path: fronts, explanations, networks, databases
subject.py        subject of a front: a problem of an op, or of one kernel
front.py          the configs of a problem on a GPU as points
network.py        a network over power limits
document.py       the page: its script, its style and Bokeh's, in one document or as files
report.py         the document with answers inside
server.py         the document and the answers over HTTP, on loopback
static/           HTML, style and script

The script keeps the reader's selection and draws charts. The recommender computes all figures.
"""
