"""x86 CPUs: AVX2, AVX-512, AMX."""
