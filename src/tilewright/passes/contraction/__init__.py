"""Contractions in tile registers to block programs: the one strategy of its own that is left.

| file    | subject                                                                                     |
|---------|---------------------------------------------------------------------------------------------|
| draft   | the block program that the passes fill in, part by part                                      |
| text    | block text from digits: coordinates, the end of a block                                      |
| tiles   | tile products; rows read where they lie, or staged with their padding; B packed              |
"""
