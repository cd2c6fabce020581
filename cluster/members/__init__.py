"""The hosts of a cluster: who they are, who leads which shard, who does what is done once."""
