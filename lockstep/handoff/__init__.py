"""What is owed to replicas that did not get it: hints, logged batches, updates of views.

Owns: durable records of what is owed, their delivery, their end by age or by a mark for repair, and what a
change of a table means for its views. Invariant: an owed write is forgotten only when each replica has it or
a durable hint stands for it. Neighbours: writes through coordination, keeps its records in storage.
"""
