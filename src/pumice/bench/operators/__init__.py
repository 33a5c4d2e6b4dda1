"""Speed and correctness of the GPU operators, through PyTorch."""
