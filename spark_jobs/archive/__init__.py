"""The jobs archive and compact, which write the Delta table LAKE/archive."""
