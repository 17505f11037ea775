"""AMD CDNA."""
