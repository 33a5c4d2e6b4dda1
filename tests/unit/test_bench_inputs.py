"""Tensors that operators are timed with."""

import numpy as np
import torch

from pumice.bench.operators.inputs import copies, make_tensors
from pumice.operators.decode_attention.spec import BENCH, SPEC
from pumice.operators.triton.plan import make_problem


def test_tensors_have_the_problem_s_strides():
    label, attrs, inputs = next(row for row in BENCH if "8×128" in row[0])
    problem = make_problem(SPEC, attrs, inputs)
    tensors = make_tensors(SPEC.name, problem, inputs, "cpu", seed=0)
    for name, spec in problem.tensors.items():
        assert tensors[name].stride() == spec.stride, (label, name)
    assert not tensors["q"].is_contiguous()
    again = copies(tensors)
    for name, tensor in tensors.items():
        assert again[name].stride() == tensor.stride()
        assert again[name].data_ptr() != tensor.data_ptr()
        np.testing.assert_array_equal(again[name].numpy(), tensor.numpy())
    assert torch.isfinite(tensors["q"].float()).all()
