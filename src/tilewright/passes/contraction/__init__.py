"""Contractions to block programs: by lanes or tiles; and the packing of the factor that is known beforehand.

| file    | subject                                                                                     |
|---------|---------------------------------------------------------------------------------------------|
| draft   | the block program that the passes fill in, part by part                                      |
| text    | block text from digits: coordinates, conditions, the end of a block                          |
| lanes   | vectors along a digit that both factors and the result keep                                  |
| tiles   | tile products; rows read where they lie, or staged with their padding                        |
| packing | the columns' factor in the order in which it is read                                         |
"""
