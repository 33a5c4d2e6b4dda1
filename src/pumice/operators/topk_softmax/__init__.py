"""topk_softmax: the router of a mixture of experts."""
