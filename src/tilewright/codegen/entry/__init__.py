"""A host program as machine code: functions with a C interface that launch the programs of a module."""
