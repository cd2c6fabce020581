"""The layout of rows and the tables that translate events into row changes."""
