"""The console: pages for browsers over the operators' API."""
