"""Plain calls like one before, of all targets: a native function compares the arguments, and makes the launch.

| file       | subject                                                            |
|------------|--------------------------------------------------------------------|
| words      | the words of tables and records                                    |
| describing | LLVM text: the words that describe the arguments of a call         |
| copying    | LLVM text: contiguous copies of small arrays                       |
| following  | LLVM text: the function that finds a record and does what it says  |
| table      | tables and records, and the function as Python calls it            |
| learnt     | what a callable remembers of its calls                             |
| observing  | kernel calls that tell who observes them what they launched        |
| llvm_text  | LLVM text that they share: words of records, rows of tables, loops |
"""
