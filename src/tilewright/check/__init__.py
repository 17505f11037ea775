"""Checks of block and loop programs against their machine, and the distribution of register tensors over threads."""
