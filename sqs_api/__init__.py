"""The surface: the gateway, its protocols, the command line and the wiring of a node."""
