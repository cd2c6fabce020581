"""Backup, restore and verification of data folders."""
