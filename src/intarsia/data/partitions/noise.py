"""Equal shares, noisier from client to client."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import part
from intarsia.data.partitions.iid import IID


@part
class Noise(IID):
    """Gau(sigma): equal random shares, with Gaussian noise that grows from client to client.

    Li et al. 2022 (NIID-Bench), noise-based feature imbalance. The text gives client i of N (from 1) the
    variance sigma*i/N; the code gives it (from 0) the standard deviation sigma*i/(N-1), and noise on the
    test data too. Open: whether inputs are scaled before; nothing is clipped. Ours: a sample's noise is drawn once and
    stays, unless `redrawn`: the code draws it anew whenever the sample is looked at, so that its networks never see the
    same noise twice.
    """

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "equal random shares, noisier from client to client (NIID-Bench's Gau)"

    sigma: Annotated[float, Field(ge=0)] = 0.1
    """How noisy the last client is."""
    spread: Literal["std", "variance"] = "std"
    """What sigma scales: the deviation, as in the code, or the variance, as in the text."""
    noisy_test: bool = True
    """Whether test data get the client's noise too."""
    redrawn: bool = False
    """Whether training data get other noise in every batch, as in the code; whoever looks at them in order sees them
    without it. Noise on validation and test data is drawn once: a model's score is one number."""

    def noise_scale(self, i: int, clients: int) -> float:
        """Return the standard deviation of the noise of client i, counted from 0."""
        if not 0 <= i < clients:
            raise self._error(f"there is no client {i}: {clients} clients are numbered from 0")
        if self.spread == "variance":
            return math.sqrt(self.sigma * (i + 1) / clients)
        return self.sigma * i / max(1, clients - 1)

    def add_noise(
        self, x: NDArray[np.float32], client: int, clients: int, seed: int, split: str = "train"
    ) -> NDArray[np.float32]:
        """Return a client's inputs with its noise; split `test` stays as it is without `noisy_test`."""
        noisy = np.array(x, np.float32)
        scale = np.float32(self.noise_scale(client, clients))
        if split != "test" or self.noisy_test:
            random = self._random(seed, "noise", client, split)
            noisy += scale * random.standard_normal(noisy.shape, np.float32)
        return noisy
