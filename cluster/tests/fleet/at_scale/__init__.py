"""Simulates the rules of the plan on models of clusters."""
