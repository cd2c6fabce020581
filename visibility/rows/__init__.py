"""Rows: their keys and values, and the changes of one Entry."""
