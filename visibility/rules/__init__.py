"""The decisions: what a request answers and which events it makes."""
