"""Products of tiles: one lowering, made of parts that a plan chooses one by one.

| file         | subject                                                                                 |
|--------------|-----------------------------------------------------------------------------------------|
| mma          | the rule: from an MMA and its plan to the parts of its lowering                         |
| lowered      | these parts, and the one function that writes a product from them                       |
| product      | an MMA as its parts see it: dimensions, current parts, indices of its loops             |
| nest         | the K loops: limited, unrolled, peeled, split                                           |
| masked       | K iterations that masks on coordinates leave out                                        |
| steps        | multiply steps: by an atom, by vectors, by terms of formulas                            |
| tiles        | the accumulator tiles that a product goes over                                          |
| accumulator  | where sums are: in registers or memory, carried or new                                  |
| registers    | registers of operands for a K step, and those that a task keeps                         |
| source       | what every source of an operand can be asked                                            |
| in_place     | an operand where it lies in memory                                                      |
| packed       | panels of A, packed B                                                                   |
| staged       | K steps of an operand in shared memory                                                  |
| in_registers | A in registers for all of K                                                             |
| computed     | A computed in registers, a step of K at a time                                          |
| halo_tile    | A as a halo tile in shared memory, and B beside it                                      |
| operands     | which of these sources an operand of an atom has                                        |
| atoms        | products by atoms                                                                       |
| lanes        | products by vectors along a dimension that A, B and C share                             |
| elements     | products of formulas, without an atom                                                   |
| task         | a task's blocks in tile registers: operands staged before, results stored a block later |
| lines        | rows of A that a task stages: halo tiles and im2col panels in the worker's memory       |
"""
