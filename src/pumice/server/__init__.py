"""One engine for many clients, over HTTP, in the protocols that clients already speak."""
