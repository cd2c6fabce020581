"""The job dead-letters."""
