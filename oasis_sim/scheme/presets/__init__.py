"""Built-in schemes."""
