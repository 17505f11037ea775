"""x86 with AVX2, AVX-512, AMX."""
