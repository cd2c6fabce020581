"""The webhook for dead letters."""
