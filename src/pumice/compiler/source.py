"""placeholder"""
from typing import Any
ModelSource = Any
def open_model(*a): ...
