"""Who this node is and how it becomes, stays and ceases to be a member.

Owns: identity, founding and joining, signs of life and gossip, clocks of the nodes, the management group, the
voters of the metadata group, and what a node hands over when it leaves. Invariant: a node takes part in
consensus only under the identity that its disk holds. Neighbours: submits through node.log.
"""
