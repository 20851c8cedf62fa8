"""Who a client is and what it may do: logins, roles, permissions, the audit log.

Owns: SASL logins and their delays, salted passwords, needs of statements, permits of connections, statements
about roles. Invariant: a permission is judged by the metadata at the moment of use.
"""
