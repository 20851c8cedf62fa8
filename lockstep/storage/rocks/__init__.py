"""The store of real nodes: RocksDB, its files checked, its errors named, its ranges in and out.

Invariant: raw mode only; every file that is known to have held something is checked before the store opens.
"""
