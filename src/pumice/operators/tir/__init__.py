"""TensorIR snippets that CPU kernels share: a function builder, vectors, elementary functions,
group quantization.

Kernels are written with TVM's IR builder in plain Python: a Python `for` unrolls at build time,
`T.serial` makes a loop. Vectors are *logical*: a kernel may use 32 lanes everywhere, and LLVM
splits them into the target's registers (2 of AVX-512, 4 of AVX2, 8 of Neon). Only register tiles
need the target's real width.
"""
