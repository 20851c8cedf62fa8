"""What to do when the groups that hold a cluster together have lost their majority: what follows from the
answers of the nodes that are left, and what a node has promised or done. `node.recovery` carries it out.

- `survey`: what a node says of itself.
- `living`: a repair of the management group alone, which the metadata group decides.
- `plan`: from what the nodes that are left say of themselves to the plan of a repair, or why there is none.
- `replacing`: the plan of a repair that puts another value in the place of the metadata.
- `harmless`: which entries of a node that was away make no difference.
- `fences`: whether a node that was away may go to the repaired cluster.
- `steps`: the records of a repair that a node keeps, and what may follow what.
- `audit`: what was done for whom, in records that follow each other by their hashes.
"""
