"""A stand-in for libamdhip64: AMD's driver functions in this process, on an emulated card.

cards.py      what the emulated cards are          status.py    HIP's error codes and names
executor.py   what runs kernels and holds memory   work.py      streams, events, graphs
abi.py        C functions made of Python methods   library.py   the driver's functions
"""
