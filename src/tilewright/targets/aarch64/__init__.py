"""AArch64 CPUs: NEON with and without half floats, dot products, bf16 and 8-bit matrix products."""
