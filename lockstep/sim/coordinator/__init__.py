"""One real node among scripted peers: what it does as coordinator and as replica when epochs differ.

Invariant: a case is a text that can be read from top to bottom; whatever it does not name must not happen.
"""
