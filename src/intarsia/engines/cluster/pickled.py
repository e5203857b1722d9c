"""What goes to a cluster's workers by pickle: functions, and what was given in Python."""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
import torch
from torch import Tensor


class _Compact(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a tensor that is a view as what it shows: torch would add all that lies under it, each time."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.untyped_storage().nbytes() > obj.numel() * obj.element_size():
            return torch.clone(obj.detach()).__reduce_ex__(5)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def pickled(obj: Any) -> bytes:
    """Return anything as bytes that a worker can read; classes and functions of a script go with it."""
    buffer = io.BytesIO()
    _Compact(buffer, protocol=5).dump(obj)
    return buffer.getvalue()
