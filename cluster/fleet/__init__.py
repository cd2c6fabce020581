"""A fleet of clusters: the rules by which queues are given to them."""
