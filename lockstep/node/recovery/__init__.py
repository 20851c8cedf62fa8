"""Disasters of one node: a store given up and filled anew (`store`), and the groups of the cluster made anew
after their majority was lost: what this node recorded of it (`recovery_file`), what it does at its next start
(`applying`), how its files are taken back (`stepping_back`) or replaced (`replacing`), by what a node is
judged that was away (`judging`), who asks whom (`reset_service`), and the audit of it all (`audit_file`).
"""
