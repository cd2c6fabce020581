"""Who sent a request: bytes and time in, a Caller or an AuthError out. Pure."""
