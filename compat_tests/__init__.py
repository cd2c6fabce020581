"""Black-box tests: what they ask of the service could be asked of AWS with the same code."""
