"""Secrets at rest: master key, data keys, users and access keys."""
