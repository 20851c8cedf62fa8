"""What the house report counts: one module a kind of figure, each from sources or a run to plain values."""
