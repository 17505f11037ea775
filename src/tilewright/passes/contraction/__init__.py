"""Contractions to block programs: by tiles, or by vectors where sizes are open; and the packing of B.

| file    | subject                                                                                     |
|---------|---------------------------------------------------------------------------------------------|
| draft   | the block program that the passes fill in, part by part                                      |
| text    | block text from digits: coordinates, conditions, the end of a block                          |
| vectors | rows of numbers times vectors of columns, no copy of the rows                                |
| tiles   | tile products; rows read where they lie, or staged with their padding                        |
| packing | the columns' factor in the order in which it is read                                         |
"""
