"""The job replay, which sends archived messages to a queue."""
