"""The service's side of the archive: export to the lake and acknowledgement."""
