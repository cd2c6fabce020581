"""The job replay."""
