"""Hardware profiles shipped with oasis-sim."""
