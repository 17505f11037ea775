"""NVIDIA Hopper."""
