"""What GPUs share: from a loop program to LLVM IR for waves of many lanes."""
