"""The lowering of MMAs, made of parts that a plan chooses one by one.

| file         | subject                                                                           |
|--------------|-----------------------------------------------------------------------------------|
| rule         | the rule: from an MMA and its plan to the parts of its lowering                   |
| parts        | these parts, and the one function that emits an MMA from them                     |
| product      | an MMA as its lowering sees it: dimensions, current parts, indices of its loops   |
| k_loops      | the K loops: limited, unrolled, peeled, split                                     |
| masked       | K iterations that masks skip                                                      |
| steps        | multiply steps: by an atom, by vectors, by terms of formulas                      |
| tiles        | the accumulator tiles of an MMA                                                   |
| accumulator  | the accumulator: in registers or memory, carried or new                           |
| registers    | registers of operands for a K step, and those that a task keeps                   |
| source       | the interface of operand sources                                                  |
| in_place     | an operand that is read in place                                                  |
| packed       | panels of A, packed B                                                             |
| shared       | computed operands B that several accumulator tiles share, packed once           |
| staged       | K steps of an operand in shared memory                                            |
| in_registers | A in registers for all of K                                                       |
| computed     | A computed in registers, one K step at a time                                     |
| halo_tile    | A as a halo tile in shared memory, and B beside it                                |
| operands     | chooses the source of each operand of an atom                                     |
| atoms        | MMAs by atoms                                                                     |
| lanes        | MMAs by vectors along a dimension that A, B and C share                           |
| elements     | MMAs of formulas, without an atom                                                 |
| task         | a task's blocks in tile registers: staged operands, delayed stores                |
| staged_rows  | rows of A that a task stages: halo tiles and im2col panels in the worker's memory |
"""
