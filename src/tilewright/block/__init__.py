"""The block level in use: where a register tensor's elements lie, and the checks that need a machine's description."""
