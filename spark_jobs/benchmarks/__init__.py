"""Benchmarks of the jobs: commands of their own, each beside plain Spark doing the same reading and writing."""
