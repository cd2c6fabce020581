"""Where messages lie: events to one write batch, and back."""
