"""Batch jobs over the lake: archive, compact, queue-age, dead-letters and replay."""
