"""The features of a shard: decisions, and the events that they make."""
