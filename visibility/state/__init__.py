"""One shard's memory: the state of queues and what changes it."""
