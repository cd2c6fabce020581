"""Tests of the members of a cluster."""
