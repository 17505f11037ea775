"""AMD's CDNA GPUs: machine table and atoms."""
