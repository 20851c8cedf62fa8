"""The metadata group and the management group: their members, and the next safe change of them."""
