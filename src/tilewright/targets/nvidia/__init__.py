"""NVIDIA's GPUs: machine table, atoms, PTX and launches."""
