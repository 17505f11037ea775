"""Intel's Xe GPUs: machine table and atoms."""
