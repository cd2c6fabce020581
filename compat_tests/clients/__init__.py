"""Clients of the facade: each speaks to the service the way real programs do."""
