"""The webhook: dead letters and redrives are announced to a team."""
