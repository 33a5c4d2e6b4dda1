"""What every Triton kernel shares: problems, launches, plans, and compilation ahead of time.

Nothing here imports Triton but `build.py`; kernels do, in `operators/<name>/kernel_triton*.py`.
"""
