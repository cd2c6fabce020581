"""Several clusters that share their queues, users and keys, and the rules by which queues are given
to them: see FLEET.md."""
