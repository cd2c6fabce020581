"""Shards: one state, one store and one loop of Turns each."""
