"""The live dashboard: `andrea dashboard RUN` serves scripts/live-loss-dashboard.html and what a run's files say.

tail.py reads files that grow, history.py, samples.py and happened.py keep what was read, watch.py puts a run together,
view.py makes an answer of bounded size of it, server.py speaks HTTP. Nothing is ever written.
"""
