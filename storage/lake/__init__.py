"""The lake: segments of archived messages and the table that lists them."""
