"""Stores that hold a shard's rows, and the data folder they lie in."""
