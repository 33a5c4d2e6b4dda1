"""Compiled GPU programs as data: what a code object says of its kernels, read without a driver.

Import the reader that is needed: `pumice.binary.amdgpu`.
"""
