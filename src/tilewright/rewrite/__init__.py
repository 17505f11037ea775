"""Rewrites from tile programs to tile programs with the same meaning: one file a rewrite. No rewrite names a machine.

| file               | subject                                                                     |
|--------------------|-----------------------------------------------------------------------------|
| adjacent_gemms     | adjacent GEMMs: rows of A that begin right behind each other                |
| align_rows         | copies operands to rows that bulk copies can read                           |
| block_diagonal     | adjacent GEMMs as one, with a block-diagonal B                              |
| box_tile           | tiles a flat dimension into boxes of its digits                             |
| congruences        | operands that are zero unless a sum of indices is a multiple of a number    |
| contraction        | a contraction as a program over its digits                                  |
| digits             | flat dimensions as the digits into which accesses divide them               |
| dim_order          | one order of dimensions for all tiles and MMAs                              |
| drop_empty         | removes operations on empty tiles                                           |
| drop_loop          | a loop whose carried values can be merged, in one iteration                 |
| flatten            | elementwise programs over one dimension, if rows are no whole vectors       |
| join_reads         | joins reads of the same elements                                            |
| k_last             | copies of operands with a dimension of K as the last of memory              |
| k_loop             | a loop over the steps of a dimension that MMAs sum at once                  |
| loop_fission       | splits loops over K whose accumulators are needed one after the other       |
| mask_values        | constants of masking selects, copied into the loops of the selects          |
| merge_dims         | merges neighbouring dimensions                                              |
| operand_copies     | copies of operands: accesses in numbers, the copying programs               |
| phases             | MMAs on operands that are zero by a congruence, split into denser ones      |
| rewriter           | rewriters of programs: over other dimensions, or as two programs            |
| softmax_loop       | a softmax between two MMAs as a loop over its dimension                     |
| split_k            | split-K: a program with one MMA as two                                      |
| split_kernel       | two kernels with a value between MMAs in memory                             |
| split_loop         | a loop whose carried values can be merged as two programs                   |
| split_reduction    | a long reduction as two programs                                            |
| tile_between_gemms | a loop over the dimension between chained MMAs                              |
| unit_rows          | a dimension of extent 1 for MMAs with an operand that lacks M or N          |
| unit_loops         | loops of one iteration: the body takes the place of the loop                |
| unit_taps          | windows of one element: coordinates without the index of a summed dimension |
| vector_products    | sums instead of matrix-vector products, on GPUs                             |
"""
