"""Kernels as files: exported as objects, libraries or GPU code with a manifest, and loaded without the compiler."""
