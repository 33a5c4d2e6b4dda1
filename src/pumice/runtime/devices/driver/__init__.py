"""GPUs through their drivers alone: libcuda and libamdhip64 by ctypes, one implementation.

table.py       what a driver must offer: roles, each filled by a symbol of that driver
cuda.py        NVIDIA's symbols and numbers
rocm.py        AMD's
library.py     a table bound to a library; errors with the driver's own names
choose.py      "cuda:1", "rocm:0000:03:00.0", "rocm:emulated-gfx1100" → a device
device.py      a device: properties, memory, copies, streams, modules, capture
memory.py  stream.py  launch.py  graph.py
               what a device hands out
upload.py      large uploads, read and copied at once
"""
