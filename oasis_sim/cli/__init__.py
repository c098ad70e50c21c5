"""The command line: the table of commands, and one module per group of them."""
