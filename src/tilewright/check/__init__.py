"""What a machine refuses of a block or loop program, and where a register tensor's elements lie."""
