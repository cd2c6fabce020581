"""The HTTP server: listeners, connections, TLS and proxies."""
