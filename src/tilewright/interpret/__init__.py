"""Interpreters of all levels; the executor, in numpy, defines what a tile program means."""
