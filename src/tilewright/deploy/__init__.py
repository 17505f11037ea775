"""Kernels as files: exported as objects, libraries or GPU code with a manifest, and loaded without the compiler.

| file        | subject                                                                      |
|-------------|------------------------------------------------------------------------------|
| exporting   | `export`: what is compiled, and under which name and format it is written    |
| source      | what an export is made of: host program, machine code, signature             |
| cpu, header | objects and shared libraries, and their C header                             |
| gpu         | GPU code and its launches                                                    |
| manifest    | the manifest: what it holds, and what is refused of one                      |
| files       | files that appear whole                                                      |
| loading     | `load`                                                                       |
| loaded      | a loaded kernel: calls, and the checks of their arguments                    |
| cpu_kernel  | one for a CPU, bound to arrays                                               |
| cpu_library | its functions, in this process                                               |
| threads     | the threads that run its tasks                                               |
| gpu_kernel  | one for a GPU                                                                |
"""
