"""Partitions of the field: which client holds which samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, chance, part

Rows = NDArray[np.int64]
Shares = list[Rows]
"""The row numbers of each client."""
Count = Annotated[int, Field(ge=1)]
Concentration = Annotated[float, Field(gt=0)]

REDRAWS = 10_000


@part
class Partition:
    """Deals samples to clients; the same for the same labels, number of clients and seed.

    The shares are sorted and have no row in common.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    by_rule: ClassVar[bool] = True
    """Whether who holds which label follows from the seed alone, so that parts dealt apart agree; else the
    parts are dealt as one."""

    def deal(self, labels: Rows, clients: int, seed: int, natural: Rows | None = None) -> Shares:
        """Return the rows of each client; `natural` says which writer or subject a row comes from."""
        shares = self._deal(self._checked(labels, clients), clients, seed)
        return [np.sort(rows) for rows in shares]

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        raise DataError(f"{type(self).__name__} does not say how it deals: give it a method _deal")

    def _checked(self, labels: Rows, clients: int) -> Rows:
        labels = np.asarray(labels)
        if labels.size == 0:
            raise self._error("there are no samples to deal: give it some")
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise self._error(
                f"labels must be whole numbers, one a sample, not {labels.dtype} {list(labels.shape)}"
            )
        if labels.min() < 0:
            raise self._error(f"there is a label {labels.min()}: number the labels from 0")
        if clients < 1:
            raise self._error(f"cannot deal to {clients} clients: ask for at least 1")
        if clients > len(labels):
            raise self._error(f"{len(labels)} samples are too few for {clients} clients: lower clients")
        return labels.astype(np.int64)

    def _error(self, problem: str) -> DataError:
        return DataError(f"partition '{self.name}': {problem}")

    def _random(self, seed: int, *purpose: str | int) -> np.random.Generator:
        return chance.numpy_generator(seed, "partition", self.name, *purpose)

    def _classes(self, labels: Rows) -> int:
        """Return the number of labels, each of which must have a sample."""
        missing = np.flatnonzero(np.bincount(labels) == 0).tolist()
        if missing:
            named = f"label {missing[0]} has" if len(missing) == 1 else f"labels {missing} have"
            raise self._error(f"{named} no sample: number the labels 0, 1, 2, ... without a gap")
        return int(labels.max()) + 1

    def _check_number(self, setting: str, number: int, classes: int) -> None:
        if number > classes:
            raise self._error(
                f"{setting} is {number}, but there are {classes} labels: lower it to at most {classes}"
            )

    def _among_holders(self, labels: Rows, held: Sequence[Rows], seed: int, exact: bool = False) -> Shares:
        """Divide each label's samples equally among its holders; `exact` leaves the remainder out."""
        pieces: list[list[Rows]] = [[] for _ in held]
        for label in range(int(labels.max()) + 1):
            rows = self._random(seed, "rows", label).permutation(np.flatnonzero(labels == label))
            holders = [client for client, own in enumerate(held) if label in own]
            if not holders:
                raise self._error(f"no client would hold label {label}: ask for more clients")
            if len(holders) > len(rows):
                raise self._error(
                    f"label {label} has {len(rows)} samples for {len(holders)} clients that hold it: "
                    "lower clients or the labels a client, or give it more samples"
                )
            end = len(rows) - len(rows) % len(holders) if exact else len(rows)
            for client, piece in zip(holders, np.array_split(rows[:end], len(holders)), strict=True):
                pieces[client].append(piece)
        return [np.concatenate(rows) for rows in pieces]

    def _redrawn(
        self, draw: Callable[[], NDArray[np.int64]], clients: int, minimum: int, samples: int, setting: str
    ) -> NDArray[np.int64]:
        """Draw sizes (groups x clients) until every client has the minimum."""
        if minimum * clients > samples:
            raise self._error(
                f"{samples} samples cannot give {clients} clients at least {minimum} each: "
                "lower clients or minimum"
            )
        for _ in range(REDRAWS):
            sizes = draw()
            if sizes.sum(axis=0).min() >= minimum:
                return sizes
        raise self._error(
            f"{REDRAWS:,} draws gave none in which each of {clients} clients has at least {minimum} of "
            f"{samples} samples: raise {setting}, or lower minimum or clients"
        )


@part
class IID(Partition):
    """An equal random split; sizes differ by at most one (McMahan et al. 2017)."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "equal random shares"

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        return np.array_split(self._random(seed).permutation(len(labels)), clients)


@part
class Dirichlet(Partition):
    """Dir(beta): each label is dealt by proportions drawn from a Dirichlet distribution.

    Li et al. 2022 (NIID-Bench), distribution-based label imbalance. Labels are dealt in ascending order,
    a client that already has n/N samples gets no more, and everything is drawn again until each client
    has the minimum. The paper's text leaves both out; its code has them, with 10 as the minimum.
    """

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "each label by Dirichlet proportions, with balancing (NIID-Bench's Dir)"
    by_rule: ClassVar[bool] = False

    beta: Concentration = 0.5
    minimum: Annotated[int, Field(ge=0)] = 10
    """The fewest samples that a client may have."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        counts = np.bincount(labels)
        random = self._random(seed, "sizes")
        sizes = self._redrawn(
            lambda: self._sizes(counts, clients, random), clients, self.minimum, len(labels), "beta"
        )
        groups = [np.flatnonzero(labels == label) for label in range(len(counts))]
        return _by_sizes(groups, sizes, self._random(seed, "rows"))

    def _sizes(self, counts: Rows, clients: int, random: np.random.Generator) -> NDArray[np.int64]:
        held = np.zeros(clients, np.int64)
        sizes = np.zeros((len(counts), clients), np.int64)
        proportions = random.dirichlet(np.full(clients, self.beta), len(counts))
        for label, samples in enumerate(counts):
            if samples:
                weights = _weights(proportions[label], held * clients < counts.sum())
                sizes[label] = _cut(int(samples), weights)
                held += sizes[label]
        return sizes


@part
class Labels(Partition):
    """#M=k: client i holds label i mod K and k-1 random others (Li et al. 2022, NIID-Bench).

    A label's samples are split equally among its holders, so that clients differ in size. Dealt with the
    same seed, training and test data give a client the same labels.
    """

    name: ClassVar[str] = "labels"
    summary: ClassVar[str] = "a fixed number of labels a client (NIID-Bench's #M=k)"

    per_client: Count
    """How many labels a client holds."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("per_client", self.per_client, classes)
        if clients < classes:
            raise self._error(
                f"{clients} clients are fewer than {classes} labels, so that some labels would have no "
                f"holder: ask for at least {classes} clients"
            )
        random = self._random(seed, "labels")
        held = [self._held(client % classes, classes, random) for client in range(clients)]
        return self._among_holders(labels, held, seed)

    def _held(self, first: int, classes: int, random: np.random.Generator) -> Rows:
        others = np.delete(np.arange(classes), first)
        return np.append(random.choice(others, self.per_client - 1, replace=False), first)


@part
class Noise(IID):
    """Gau(sigma): equal random shares, with Gaussian noise that grows from client to client.

    Li et al. 2022 (NIID-Bench), noise-based feature imbalance. The text gives client i of N (from 1) the
    variance sigma*i/N; the code gives it (from 0) the standard deviation sigma*i/(N-1), and noise on the
    test data too. Open: whether inputs are scaled before; nothing is clipped. Ours: a sample's noise is drawn once and
    stays; the code draws it anew whenever the sample is looked at, so that its networks never see the same noise twice.
    """

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "equal random shares, noisier from client to client (NIID-Bench's Gau)"

    sigma: Annotated[float, Field(ge=0)] = 0.1
    spread: Literal["std", "variance"] = "std"
    """What sigma scales: the deviation, as in the code, or the variance, as in the text."""
    noisy_test: bool = True
    """Whether test data get the client's noise too."""

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


@part
class Cohorts(IID):
    """Equal random shares for cohorts of clients that differ in something else; client i is in cohort i mod N."""

    number: Annotated[int, Field(ge=2)] = 2
    """How many cohorts."""

    def cohort(self, i: int) -> int:
        """Return the cohort of client i, counted from 0."""
        return i % self.number


@part
class PermutedLabels(Cohorts):
    """Cohorts that call things differently: what they see is alike, p(y|x) conflicts.

    Labels are put in a random circle, and cohort c says the label c places further on. With samples alike in
    number for every label, p(x) and p(y) are the same in all cohorts, and no label is right in two of them.
    """

    name: ClassVar[str] = "permuted_labels"
    summary: ClassVar[str] = "equal random shares; each cohort permutes the labels in its own way"

    def relabelled(self, y: Rows, client: int, classes: int, seed: int) -> Rows:
        """Return a client's labels as its cohort says them."""
        self._check_number("number", self.number, classes)
        circle = self._random(seed, "circle").permutation(classes)
        said = np.empty(classes, np.int64)
        said[circle] = np.roll(circle, -self.cohort(client))
        return said[y]


@part
class ShiftedInputs(Cohorts):
    """Cohorts that see things differently: p(x) is shifted, what it is called is the same.

    Images as they are; as negatives; mirrored along their diagonal; both.
    """

    name: ClassVar[str] = "shifted_inputs"
    summary: ClassVar[str] = "equal random shares; cohorts see negatives or mirrored images"

    number: Annotated[int, Field(ge=2, le=4)] = 2

    def shifted(self, x: NDArray[np.uint8], client: int) -> NDArray[np.uint8]:
        """Return a client's images, (n, height, width, channels) in bytes, as its cohort sees them."""
        cohort = self.cohort(client)
        if cohort & 2:
            x = x.swapaxes(1, 2)
        return 255 - x if cohort & 1 else x


@part
class LabelClusters(Partition):
    """Labels in clusters, each dealt by Dirichlet proportions over the clients (Marfoq et al. 2021, FedEM).

    The labels are shuffled into clusters of about equal size (3, 3, 4 for CIFAR-10), and each sample of a
    cluster goes to a client with the cluster's proportions. As many clusters as labels: Dir(alpha) for
    each label without balancing, FedEM's EMNIST. Open there: clients without samples; here everything is
    drawn again until each client has the minimum.
    """

    name: ClassVar[str] = "label_clusters"
    summary: ClassVar[str] = "clusters of labels by Dirichlet proportions (FedEM's CIFAR-10, EMNIST)"
    by_rule: ClassVar[bool] = False

    clusters: Count = 3
    alpha: Concentration = 0.4
    minimum: Annotated[int, Field(ge=0)] = 2
    """The fewest samples that a client may have; 2 leave one to train on and one to test."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        present = np.unique(labels)
        if self.clusters > len(present):
            raise self._error(
                f"{len(present)} labels do not fill {self.clusters} clusters: lower clusters to at most "
                f"{len(present)}"
            )
        random = self._random(seed, "sizes")
        clusters = np.array_split(self._random(seed, "clusters").permutation(present), self.clusters)
        groups = [np.flatnonzero(np.isin(labels, cluster)) for cluster in clusters]
        sizes = self._redrawn(
            lambda: self._sizes(groups, clients, random), clients, self.minimum, len(labels), "alpha"
        )
        return _by_sizes(groups, sizes, self._random(seed, "rows"))

    def _sizes(self, groups: Shares, clients: int, random: np.random.Generator) -> NDArray[np.int64]:
        everyone = np.ones(clients, np.bool_)
        proportions = random.dirichlet(np.full(clients, self.alpha), len(groups))
        return np.stack(
            [
                random.multinomial(len(rows), _weights(own, everyone))
                for rows, own in zip(groups, proportions, strict=True)
            ]
        )


@part
class Pachinko(Partition):
    """Pachinko allocation over coarse and fine labels (Li and McCallum 2006; Reddi et al. 2021).

    Each client has proportions over coarse labels, Dir(alpha), and over the fine labels of each, Dir(beta);
    its samples are drawn by them without replacement. A label without samples left is removed and the
    proportions are renormalised. Clients draw one after the other, so that the last ones get what is left.
    """

    name: ClassVar[str] = "pachinko"
    summary: ClassVar[str] = "coarse, then fine labels by Dirichlet proportions (CIFAR-100)"
    by_rule: ClassVar[bool] = False

    alpha: Concentration = 0.4
    """Concentration over coarse labels."""
    beta: Concentration = 10.0
    """Concentration over the fine labels of a coarse one."""
    coarse_of_fine: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The coarse label of each fine label."""
    per_client: Annotated[int, Field(ge=0)] = 0
    """How many samples a client gets; 0: as many as there are for each."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        self._check_table(labels)
        each = self.per_client or len(labels) // clients
        if clients * each > len(labels):
            raise self._error(
                f"{clients} clients with {each} samples each need more than the {len(labels)} there are: "
                "lower clients or per_client"
            )
        coarse = np.asarray(self.coarse_of_fine)
        families = [np.flatnonzero(coarse == family) for family in np.unique(coarse)]
        left = np.bincount(labels, minlength=len(coarse))
        sizes = [
            self._draw(left, families, each, self._random(seed, "client", client))
            for client in range(clients)
        ]
        groups = [np.flatnonzero(labels == label) for label in range(len(coarse))]
        return _by_sizes(groups, np.stack(sizes, axis=1), self._random(seed, "rows"))

    def _draw(self, left: Rows, families: Shares, each: int, random: np.random.Generator) -> Rows:
        """Return how many samples of each fine label a client draws, and take them from what is left."""
        stock = np.array([left[family].sum() for family in families])
        proportions = random.dirichlet(np.full(len(families), self.alpha))
        drawn = np.zeros_like(left)
        for family, number in zip(families, _take(stock, proportions, each, random), strict=True):
            within = random.dirichlet(np.full(len(family), self.beta))
            drawn[family] = _take(left[family], within, int(number), random)
        left -= drawn
        return drawn

    def _check_table(self, labels: Rows) -> None:
        if not self.coarse_of_fine:
            raise self._error("coarse_of_fine is empty: give the coarse label of each fine label")
        if labels.max() >= len(self.coarse_of_fine):
            raise self._error(
                f"coarse_of_fine has {len(self.coarse_of_fine)} entries and none for label {labels.max()}: "
                "give the coarse label of each fine label"
            )


@part
class Natural(Partition):
    """By writer, subject or picture, in ascending order; of more than the clients, a random choice.

    Caldas et al. 2018 (LEAF). Marfoq et al. 2021 keep 15 % of FEMNIST's writers, which is 539 clients;
    which ones is open.
    """

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "one client for each writer or subject"
    by_rule: ClassVar[bool] = False

    def deal(self, labels: Rows, clients: int, seed: int, natural: Rows | None = None) -> Shares:
        """Return the rows of each client: those of one writer or subject."""
        rows = len(self._checked(labels, clients))
        if natural is None:
            raise self._error("the data do not say whom a sample comes from: choose another partition")
        if np.shape(natural) != (rows,):
            raise self._error(
                f"the origins have shape {list(np.shape(natural))} for {rows} samples: give one a sample"
            )
        known = np.unique(natural)
        if clients > len(known):
            raise self._error(
                f"{clients} clients are more than the {len(known)} writers or subjects: lower clients to "
                f"at most {len(known)}"
            )
        chosen = np.sort(self._random(seed).choice(known, clients, replace=False))
        return [np.flatnonzero(natural == one) for one in chosen]


@part
class TwoClasses(Partition):
    """Every client holds two random labels, and every label has about the same number of holders.

    Wang et al. 2024 (pFedClub): "each client randomly holds data belonging to two classes". Open there: how
    labels are drawn and samples divided; here holders of a label differ by at most one in number, and its
    samples are divided equally among them. Dealt with the same seed, training and test data give a client
    the same labels.
    """

    name: ClassVar[str] = "two_classes"
    summary: ClassVar[str] = "two random labels a client, labels equally often (pFedClub)"

    per_client: Count = 2
    """How many labels a client holds."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("per_client", self.per_client, classes)
        if clients * self.per_client < classes:
            raise self._error(
                f"{clients} clients with {self.per_client} labels each cannot hold all {classes} labels: "
                f"ask for at least {math.ceil(classes / self.per_client)} clients"
            )
        return self._among_holders(labels, self._held(classes, clients, self._random(seed, "labels")), seed)

    def _held(self, classes: int, clients: int, random: np.random.Generator) -> Shares:
        """Draw the labels of each client from what is left of equally many slots a label."""
        slots, extra = divmod(clients * self.per_client, classes)
        left = np.full(classes, slots)
        left[random.permutation(classes)[:extra]] += 1
        held = []
        for clients_left in range(clients, 0, -1):
            needed = np.flatnonzero(left == clients_left)  # every client from here on must hold these
            free = np.flatnonzero((left > 0) & (left < clients_left))
            number = self.per_client - len(needed)
            weights = left[free] / max(1, left[free].sum())
            drawn = random.choice(free, number, replace=False, p=weights) if number else free[:0]
            own = np.append(needed, drawn)
            left[own] -= 1
            held.append(own)
        return [held[client] for client in random.permutation(clients)]


@part
class Windows(Partition):
    """Groups with cyclic windows of labels {j, ..., j+P-1}; client i is in group i mod K.

    Liang et al. 2022 (ModFL). There are as many groups as labels, or one where a group has all of them.
    Each label's samples are divided equally among its holders; the remainder is left out. The paper says
    that groups have unlike sets of P labels, and that clients have equally many samples, in all and of each
    of their labels; windows and division are recovered from its tables.
    """

    name: ClassVar[str] = "windows"
    summary: ClassVar[str] = "groups of clients with cyclic windows of labels (ModFL)"

    labels_per_group: Count
    """How many labels a group has: P."""

    def group(self, i: int, classes: int) -> int:
        """Return the group of client i, counted from 0."""
        return 0 if self.labels_per_group == classes else i % classes

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("labels_per_group", self.labels_per_group, classes)
        window = np.arange(self.labels_per_group)
        held = [(self.group(client, classes) + window) % classes for client in range(clients)]
        return self._among_holders(labels, held, seed, exact=True)


PARTITIONS: dict[str, type[Partition]] = {
    kind.name: kind
    for kind in (
        IID,
        Dirichlet,
        Labels,
        Noise,
        PermutedLabels,
        ShiftedInputs,
        LabelClusters,
        Pachinko,
        Natural,
        TwoClasses,
        Windows,
    )
}


def stratified(
    labels: Rows, rows: Rows, shares: Mapping[str, float], seed: int, purpose: str | int
) -> dict[str, Rows]:
    """Split one client's rows into named shares, each label in proportion; every row is used once.

    The sizes are those of the largest remainder, except that a share above 0 gets at least one row where
    there are enough. Each share takes evenly spaced rows of what is left, sorted by label, so that a label
    is at most a row or two off its proportion and rare labels do not all fall to the same share.
    """
    random = chance.numpy_generator(seed, "stratified", purpose)
    left = random.permutation(np.sort(np.asarray(rows, np.int64)))
    own = labels[left]
    order = random.permutation(int(own.max(initial=0)) + 1)
    left = left[np.argsort(order[own], kind="stable")]
    parts = {}
    for name, size in _apportioned(len(left), shares).items():
        chosen = _evenly(size, len(left), random)
        parts[name] = np.sort(left[chosen])
        left = left[~chosen]
    return parts


def _by_sizes(groups: Shares, sizes: NDArray[np.int64], random: np.random.Generator) -> Shares:
    """Deal each group's rows in random order: to client i, sizes[group, i] of them."""
    ends = np.cumsum(sizes, axis=1)
    dealt = [np.split(random.permutation(rows), own) for rows, own in zip(groups, ends, strict=True)]
    return [np.concatenate([pieces[client] for pieces in dealt]) for client in range(sizes.shape[1])]


def _weights(drawn: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the drawn proportions among the allowed, or equal ones where nothing is left of them."""
    weights = np.where(allowed, drawn, 0.0)
    if not weights.sum() > 0:  # a proportion can vanish in floating point
        weights = allowed.astype(np.float64)
    weights /= weights.sum()
    return weights


def _cut(samples: int, weights: NDArray[np.float64]) -> Rows:
    """Return sizes in these proportions that sum to the samples; a weight of 0 gives none."""
    ends = np.cumsum(weights)
    sizes: Rows = np.diff((ends / ends[-1] * samples).astype(np.int64), prepend=0)
    return sizes


def _take(stock: Rows, proportions: NDArray[np.float64], number: int, random: np.random.Generator) -> Rows:
    """Return how often each kind is drawn, where a kind that runs out is removed and others renormalised.

    The same as drawing one by one: a draw of a kind that has run out is repeated.
    """
    taken = np.zeros_like(stock)
    while number > taken.sum():
        drawn = random.multinomial(number - taken.sum(), _weights(proportions, taken < stock))
        taken = np.minimum(taken + drawn, stock)
    return taken


def _apportioned(number: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return sizes that sum to the number: the largest remainders are rounded up."""
    wanted = np.array(list(shares.values()), np.float64)
    if not (len(wanted) and (wanted >= 0).all() and math.isclose(wanted.sum(), 1, abs_tol=1e-6)):
        raise DataError(f"the shares of a split must be at least 0 and sum to 1, not {dict(shares)}")
    exact = number * wanted / wanted.sum()
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: number - sizes.sum()]] += 1
    for empty in np.flatnonzero((sizes == 0) & (wanted > 0)):
        if sizes.max() > 1:
            sizes[sizes.argmax()] -= 1
            sizes[empty] += 1
    return dict(zip(shares, sizes.tolist(), strict=True))


def _evenly(size: int, total: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Choose positions at even distances from a random start."""
    start = int(random.integers(max(1, total)))
    steps = (np.arange(total + 1) * size + start) // max(1, total)
    return np.diff(steps) > 0
