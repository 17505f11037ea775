"""Products of tiles."""
