"""A cluster of three hosts on one machine, to try and to test; see `holdfast cluster try`."""
