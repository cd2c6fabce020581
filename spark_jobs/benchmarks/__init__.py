"""Benchmarks of the jobs beside plain Spark on the same files: the claims are ratios, since machines differ."""
