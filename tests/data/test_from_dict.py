"""A user's own data as a dict of clients: what is refused, and what it is said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.core import DataError
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


X = torch.arange(8.0).reshape(4, 2)
WORDS = ["cat", "dog", "cat", "dog"]
NUMBER_THEM = "labels must be whole numbers, not words such as 'cat': number the words in the same way"
ONE = "train data of client 'a': x must be one tensor with a row a sample, not several"


class Samples:
    """A Dataset of (x, y)."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((X, WORDS), NUMBER_THEM),
        ((X, np.asarray(WORDS)), NUMBER_THEM),
        ((X, np.asarray(WORDS, dtype=object)), NUMBER_THEM),
        (Samples(X, WORDS), NUMBER_THEM),
        (((X, X), LABELS), ONE),
        (((X, X[:, :1]), LABELS), ONE),
        (((X.numpy(), X.numpy()), LABELS), ONE),
        (({"left": X, "right": X}, LABELS), ONE),
        (([*X], LABELS), ONE + ": torch.stack the rows"),
        (Samples([(X, X)] * 4, LABELS), ONE),
        ((WORDS, LABELS), "x must be numbers, not words such as 'cat'"),
        (Samples([X[0], X[0, :1], X[0], X[0]], LABELS), "train data of client 'a' cannot be made tensors"),
        (Samples(X, [0, [1, 0], 0, 1]), "train data of client 'a' cannot be made tensors"),
    ],
)
def test_what_is_no_tensor_is_named(train, message):
    with pytest.raises(DataError) as caught:
        from_dict({"a": {"train": train, "test": (X, LABELS)}})
    assert message in str(caught.value)


def test_words_are_no_targets_of_regression_either():
    with pytest.raises(DataError, match="targets must be numbers, not words such as 'cat'"):
        from_dict({"a": both(X, WORDS)}, problem="regression")


def test_rows_as_a_list_of_arrays_are_fine():
    assert from_dict({"a": both(list(X.numpy()))}).infos[0].shape == (2,)


def test_attributes_are_words_and_capacity_is_a_number():
    data = both(X, device=1, cohort=2.5, capacity="0.5", task=None, model=np.str_("small"))
    info = from_dict({"a": data}).infos[0]
    assert (info.device, info.cohort, info.task, info.model) == ("1", "2.5", "", "small")
    assert (info.capacity, type(info.capacity)) == (0.5, float)
    assert from_dict({"a": both(X, capacity=None)}).infos[0].capacity == 1


@pytest.mark.parametrize("capacity", ["half", "", 0, -1.0, float("nan"), float("inf"), [1, 2]])
def test_a_capacity_is_a_number_above_nothing(capacity):
    with pytest.raises(DataError) as caught:
        from_dict({"a": both(X, capacity=capacity)})
    assert f"client 'a' has capacity {capacity!r}: write a number above 0" in str(caught.value)
