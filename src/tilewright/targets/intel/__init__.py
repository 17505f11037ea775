"""Intel Xe."""
