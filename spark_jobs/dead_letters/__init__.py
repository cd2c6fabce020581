"""The job dead-letters, which writes the Delta table LAKE/dead_letters."""
