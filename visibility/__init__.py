"""What happens to messages: operations and stamps in, results and events out. Pure."""
