"""The processes of one machine: the supervisor, and its workers."""
