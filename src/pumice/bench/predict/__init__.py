"""Room: how fast a compiled model would be on a card, from its plans alone.

cards.py      what vendors and measurements say of cards
occupancy.py  blocks that a compute unit holds at once
calls.py      a plan's launches as operator calls, with their bytes and operations
measured.py   measured rows of the tensor engine as (least time, measured time)
model.py      the formulas: a call's time, a step's time
speeds.py     llama-bench's tests as tokens per second
beside.py     measured figures of the same tests, where there are some

Nothing here runs on a GPU, and its figures are predictions until somebody measures them.
"""
