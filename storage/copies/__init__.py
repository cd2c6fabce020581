"""Copies of data files: manifests, snapshots, exports."""
