"""Parts that several jobs use."""
