"""Phases 3 to 7 for GPUs: a graph becomes plans of Triton launches, one for each batch shape.

shapes.py     which batch shapes get a plan
weights.py    in which form a weight is kept, and its packing
values.py     a tensor argument: where it lies, and its spec
translate.py  graph operators → calls of the tensor engine's operators
fuse_attention.py, fuse_products.py  calls that one launch does together
cost.py       how long a call takes, measured or estimated
select.py     a call → the launches of the kernel that measurement chose
lower.py      calls → an artifact's plan
binaries.py   compiles every distinct kernel once, in parallel
package.py    all phases in order, and the manifest
"""
