"""Both wire protocols of SQS, driven by one description. Pure."""
