"""Executes AMD GPU code objects on the CPU, instruction by instruction.

    from pumice.emulator.emulator import Emulator

RDNA3, RDNA4 and CDNA2 to 4 in NumPy: all waves of many workgroups that are at one program counter
run as one vector. A sanitizer looks for accesses out of bounds, races, and NaN out of numbers; a
report counts instructions and memory traffic. What it can't tell is how fast a card would be.
"""
