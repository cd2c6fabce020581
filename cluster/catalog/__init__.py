"""Definitions of queues: who made them, what they are now, and which were deleted."""
