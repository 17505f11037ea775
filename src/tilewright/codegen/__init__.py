"""Programs as LLVM text: formulas, small floats, vector mathematics; shared by all targets."""
