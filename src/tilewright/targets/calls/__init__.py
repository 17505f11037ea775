"""Fast path of repeated calls, on all targets: a native function compares the arguments with those of earlier calls and
launches the kernel.

| file       | subject                                                            |
|------------|--------------------------------------------------------------------|
| words      | the words (64-bit fields) of tables and records                    |
| describing | LLVM text: the words that describe the arguments of a call         |
| copying    | LLVM text: contiguous copies of small arrays                       |
| following  | LLVM text: the function that finds a record and carries it out     |
| table      | tables and records, and the function as Python calls it            |
| learnt     | the calls that a callable remembers                                |
| observing  | kernel calls that report to an observer                            |
| llvm_text  | LLVM text that they share: words of records, rows of tables, loops |
"""
