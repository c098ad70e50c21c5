"""Reports of a run: the table, JSON, CSV, the timeline and the run directory."""
