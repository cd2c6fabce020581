"""Faults on a real service: one traffic, one judge, and the drivers that kill, cut, fill up and damage."""
