"""Several clusters that share their queues, users and keys: see FLEET.md."""
