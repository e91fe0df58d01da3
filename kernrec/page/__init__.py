"""A page to look at answers in a browser: served from this machine, or one file that works offline.

answers.py        what the page asks for, by path: fronts, explanations, networks, databases, as plain values
subject.py        what a front is of: the problem of an op, or of one kernel
front.py          the configs of a problem on a GPU as points
network.py        a network over power limits
document.py       the page itself: its script, its style and Bokeh's, in one document or as files
report.py         the document with answers inside
server.py         the document and the answers over HTTP, on loopback
static/           HTML, style and script

The script holds what the reader chose and draws; all figures come from the recommender.
"""
