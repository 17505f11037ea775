"""Emission of programs as LLVM IR text, shared by all targets: formulas, small floats, vector mathematics."""
