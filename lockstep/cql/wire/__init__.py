"""The CQL native protocol, versions 4 and 5: bytes to values and back; no I/O.

Owns: envelopes, v5 segments, compression, request and response bodies, for the server's side
(`messages`, `responses`) and the client's (`client`). Invariant: bytes from outside raise nothing but
ProtocolViolation, and what one side encodes the other decodes to equal values. Neighbours: imports
values and schema.types; the server's connections and the bundled client drive it.
"""
