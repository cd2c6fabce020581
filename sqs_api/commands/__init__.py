"""Subcommands of `holdfast`, one file each."""
