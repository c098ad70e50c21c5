"""Built-in network profiles."""
