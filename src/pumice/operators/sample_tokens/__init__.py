"""The next tokens from logits, on GPUs."""
