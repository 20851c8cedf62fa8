"""Roles, permissions and resources: the part of the metadata that says who may do what."""
