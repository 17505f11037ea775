"""Interpreters: the executor gives tile programs their meaning, in numpy."""
