"""Who decides about a queue, and who else knows."""
