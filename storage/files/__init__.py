"""Files of a data folder: durable copies, and the folder's own record."""
