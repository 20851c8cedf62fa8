"""Documents of the admin API: how a node and its cluster stand, and why.

Owns: status and its conditions, requests and their progress, plans of dry runs, stories from the log, proofs
of the log, how both groups fare. Invariant: nobody is told "healthy" of what is not.
"""
