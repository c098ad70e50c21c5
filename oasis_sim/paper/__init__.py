"""Published tables and figures, and the simulations that are put beside them."""
