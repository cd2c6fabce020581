"""One shard's memory: the queues' state, the events that change it and how they are applied."""
