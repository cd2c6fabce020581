"""The job queue-age."""
