"""Measures an SQS endpoint over the wire: throughput, latency and what it costs the server (`make bench`)."""
