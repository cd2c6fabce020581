"""Reading everything to find damage and disagreement."""
