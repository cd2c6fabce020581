"""The job queue-age, which writes the Delta table LAKE/queue_age."""
