"""CQL text to statements as written: the grammar, its tables, the lexer and the trees.

Invariant: no name is resolved and no type is known here; the tables are generated from the grammar.
"""
