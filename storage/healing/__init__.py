"""Rows of a queue, derived from its readable messages and leases."""
