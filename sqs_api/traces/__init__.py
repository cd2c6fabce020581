"""Spans of messages for an OpenTelemetry collector."""
