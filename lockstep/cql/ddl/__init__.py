"""Schema statements to schema changes, and schemas back to the statements that make them."""
