"""The way of a request from its bytes to its queue and back."""
