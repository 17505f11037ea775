"""The part of the back end that all GPUs share: from a loop program to LLVM IR for waves of many lanes."""
