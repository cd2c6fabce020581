"""The jobs archive and compact, which write the archive table."""
