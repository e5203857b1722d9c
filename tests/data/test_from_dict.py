"""A user's own data as a dict of clients: what is refused, and what it is said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.blocks import DataError
from intarsia.data import from_dict

LABELS = [0, 1, 0, 1]


def both(x, y=LABELS, **more):
    return {"train": (x, y), "test": (x, y), **more}


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, lambda x: x.tolist()])
def test_numbers_that_float32_would_merge_are_refused(make):
    """1,700,000,000 is a step of float32, the next one is 128 on: the clients' eight seconds are one number."""
    seconds = 1.7e9 + np.arange(8.0)
    x = np.stack([np.arange(8.0) % 4, seconds], axis=1)
    with pytest.raises(
        DataError, match=r"x\[:, 1\] has 8 different values, .* tell 1 apart: subtract an offset"
    ):
        from_dict({"a": both(make(torch.from_numpy(x)[:4])), "b": both(make(torch.from_numpy(x)[4:]))})
    x[:, 1] -= 1.7e9
    population = from_dict(
        {"a": both(make(torch.from_numpy(x)[:4])), "b": both(make(torch.from_numpy(x)[4:]))}
    )
    assert population.clients["b"].data["test"].x[:, 1].tolist() == [4, 5, 6, 7]


def test_a_column_is_looked_at_over_all_clients():
    """A client alone may hold numbers that float32 merges, if the clients together hold many others."""
    near = np.asarray([[1.0], [1.0 + 1e-9], [1.0 + 2e-9], [1.0 + 3e-9]])
    with pytest.raises(DataError, match=r"x\[:, 0\]"):
        from_dict({"a": both(near)})
    from_dict({"a": both(near), "b": both(np.asarray([[0.0], [2.0], [3.0], [4.0]]))})


def test_names_are_words():
    x = torch.arange(8.0).reshape(4, 2)
    assert list(from_dict({1: both(x), 2: both(x)}).clients) == ["1", "2"]
    with pytest.raises(DataError, match="two clients are called '1'"):
        from_dict({1: both(x), "1": both(x)})
