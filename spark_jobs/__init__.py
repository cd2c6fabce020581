"""Batch analysis of the message archive; comes with a later release."""
