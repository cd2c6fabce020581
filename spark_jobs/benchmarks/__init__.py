"""Benchmarks of the jobs: each compares a job with plain Spark on the same files."""
