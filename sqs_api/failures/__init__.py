"""Failures of dead-letter queues, counted as they come and go."""
