"""Everything under /_holdfast/ that is not SQS: pages, metrics, backups, deletions."""
