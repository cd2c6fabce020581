"""Reads of stored rows, past damage, and the form of an Entry."""
