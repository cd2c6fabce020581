"""Configuration: settings, declared queues, logs."""
