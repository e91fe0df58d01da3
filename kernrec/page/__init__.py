"""Show answers in a browser: on a page served from this machine, or in one file that works offline.

answers.py        answers to the page's requests by path: fronts, explanations, networks
front.py          subjects of fronts, and the configs of a problem on a GPU as points
document.py       the page: its script, its style and Bokeh's, as files or in one document with answers inside
server.py         the document and the answers over HTTP, on loopback
static/           HTML, style and script

The script keeps the reader's selection and draws charts. The recommender computes all figures.
"""
