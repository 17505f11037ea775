"""The machines that Tilewright compiles for: one folder for each maker. No code outside this folder names a machine."""
