"""Machines: one folder each, with its tables. Nothing outside names a machine."""
