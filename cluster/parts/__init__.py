"""Queues of several parts: requests to them, and the parts that drain."""
