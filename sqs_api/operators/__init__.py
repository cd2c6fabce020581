"""The API for operators below /_holdfast/api/: queues, messages and redrives."""
