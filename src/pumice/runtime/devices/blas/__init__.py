"""Matrix products by a vendor's library (cuBLASLt, hipBLASLt), through ctypes alone.

table.py       what the runtime needs of such a library: roles, each a C function of one library
cublaslt.py    NVIDIA's names and numbers
hipblaslt.py   AMD's
library.py     where a library is looked for; its functions, bound, with errors by their names
product.py     y = x · wᵀ: descriptors, the choice of an algorithm, the call in a stream
"""
