"""Block to loop on CPUs: the loop program that one worker executes.

| file             | subject                                                                  |
|------------------|--------------------------------------------------------------------------|
| lower            | block to loop on CPUs: the table of lowering rules                       |
| register_forms   | forms of a register tensor: vectors, tiles or memory                     |
| elementwise      | copy, fill, map, broadcast: loops over elements, vectors along one axis  |
| elementwise_job  | one elementwise operation: formula, operands, shape                      |
| merged_axes      | short last axes of an elementwise job, merged so that vectors are full   |
| mma              | mma: atoms on registers, or loops with the same meaning                  |
| reduce           | reduce and scan                                                          |
| indirect         | gather, scatter, atomic                                                  |
| control          | for, tasks, if, while; unrolling, peeling, channels of one role          |
| clone            | clones of operations with other meanings for their symbols               |
| delayed_epilogue | delayed epilogues: the end of an iteration interleaved with the next one |
| address_tables   | offsets that need division, looked up in tables                          |
| loop_fusion      | maps and reductions over the same elements as one loop                   |
| transposing      | transposing copies: small matrices transposed in registers               |
"""
