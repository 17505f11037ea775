"""Export of kernels as objects, libraries or GPU code with a manifest, and loading of them without the compiler.

| file        | subject                                                                      |
|-------------|------------------------------------------------------------------------------|
| exporting   | `export`: compilation, names and file formats                                |
| source      | the input of an export: host program, machine code, signature                |
| cpu, header | objects and shared libraries, and their C header                             |
| gpu         | GPU code and its launches                                                    |
| manifest    | the manifest: its keys and its validation                                    |
| files       | atomic writing of files                                                      |
| loading     | `load`                                                                       |
| loaded      | a loaded kernel: calls, and the checks of their arguments                    |
| cpu_kernel  | a loaded kernel for a CPU                                                    |
| cpu_library | its C functions, loaded into this process                                    |
| threads     | the worker pool of loaded kernels                                            |
| gpu_kernel  | a loaded kernel for a GPU                                                    |
"""
