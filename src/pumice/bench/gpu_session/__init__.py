"""Room: one run over whole models on a GPU's machine that cannot compile, from artifacts that were
made elsewhere.

contents.py   which models, and their tests
prepare.py    compiles them, records what a CPU answers, and packs all of it for carrying
carry.py      a folder as pieces of limited size
greedy.py     prompts alone and in a mixed batch, on any executor
check.py      a GPU's answers against those recorded
measure.py    the run itself: answers, speeds, profiles, predictions beside them
"""
