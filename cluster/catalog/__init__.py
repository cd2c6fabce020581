"""Definitions of queues, present and deleted."""
