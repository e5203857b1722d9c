"""A method: sharing, objective and merge, with a round of its own where it needs one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ALL, Address, Block, Cut, Expected, Merge, Update, Values
from intarsia.core import Listed, SettingsError, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked, of_training, unknown
from intarsia.methods.server import Groups, Server
from intarsia.models import Norms, Shape, parts_of
from intarsia.training import LocalClient, Objective, Trained, Training

OWN = "own"
"""The stage of a client's own model: what it would deploy."""
EVALUATE = "evaluate"
"""The step in which a client scores its own model."""

BlockNames = Callable[[ClientInfo], Collection[str]]


@dataclass(frozen=True)
class Exchange:
    """One trip of tasks out and updates back, as a method asks for it (None: every block)."""

    step: str = "train"
    fetch: BlockNames | None = None
    train: BlockNames | None = None
    give_back: BlockNames | None = None
    values: Callable[[ClientInfo], Values] | None = None
    send: Callable[[ClientInfo], Mapping[Address, Block]] | None = None
    """Blocks that are no part of the client's model: a teacher, public data. What it holds already does not travel."""


Replies = Mapping[str, Update]
"""The accepted updates, by client; with their blocks only if the method `sees_updates`."""

Round = Generator[Exchange, Replies, None]


@part
class Sharing:
    """One block for the whole model, shared by all; or by all with the same value of one attribute."""

    name: ClassVar[str] = "all"
    needs: ClassVar[frozenset[str]] = frozenset()
    """Blocks that a user's own cut must have for this sharing to mean anything."""

    has_everyone: ClassVar[bool] = True
    """Whether some block is shared with everyone, so that `by` divides something."""

    by: str = ""
    """Attribute that divides "all" into groups (`device`: each generation federates by itself)."""
    norms: Norms = "shared"
    """Batch norms: shared with their block; `statistics` stay at home; or all of them do (FedBN, Li et al. 2021)."""

    def cut(self, model: nn.Module) -> Cut:
        """Return which tensors of the model belong to which block."""
        return Cut.whole()

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the group that the client shares this block with."""
        return self.everyone(client)

    def doubt(self, clients: Sequence[ClientInfo]) -> str:
        """Return why this sharing is hardly meant for these clients; nothing if there is no doubt."""
        if self.by and len(clients) > 1 and len({self.everyone(client) for client in clients}) == 1:
            same = clients[0].attribute(self.by)
            return f"sharing.by: all clients have the same {self.by}, '{same}', so that it divides nobody"
        return ""

    def groups_by_model(self, clients: Sequence[tuple[ClientInfo, nn.Module]]) -> Groups:
        """Return groups that follow from how the clients' models compare; those stand before `group`'s."""
        return {}

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates to decide who shares what."""
        return False

    @property
    def gives_away(self) -> str:
        """What becomes known of single clients by how they are grouped, in words; empty: nothing."""
        return (
            "who moves to which group, found from the directions of single updates"
            if self.sees_updates
            else ""
        )

    def regroup(self, server: Server, replies: Replies) -> None:
        """Change who shares what, after an exchange; by default nobody moves."""

    def everyone(self, client: ClientInfo) -> str:
        """Return the group of all clients, or of those alike in the attribute `by`."""
        return client.attribute(self.by) if self.by else ALL


def cut_before(model: nn.Module, first: str, inner: str, outer: str) -> Cut:
    """Cut a model in two: the parts before `first` (empty: the last part) are `inner`, the others `outer`."""
    parts = parts_of(model)
    names = list(parts)
    at = names.index(first) if first in names else (len(names) - 1 if not first else -1)
    if at < 1:
        possible = ", ".join(names[1:]) or "none: it has only one part"
        raise SettingsError(
            f"{type(model).__name__} cannot be cut before '{first or (names or ['-'])[-1]}'; "
            f"possible cut points: {possible}"
        )
    return Cut(
        {
            inner: tuple(p for name in names[:at] for p in parts[name]),
            outer: tuple(p for name in names[at:] for p in parts[name]),
        }
    )


@part
class Method:
    """A named combination of sharing, objective and merge; subclasses say what differs."""

    name: ClassVar[str]
    title: ClassVar[str]
    needs_loss: ClassVar[str] = ""
    """The only loss that the method is defined for (empty: any)."""
    weighs_classes: ClassVar[bool] = True
    """Whether what clients minimise is their loss, with the weights that its labels may have."""
    side_by_side: ClassVar[bool] = True
    """Whether a client's part of every exchange is to minimise `objective`, and no more: clients whose models and
    objective allow it are then trained side by side. A subclass with a `train` or `local_step` of its own that does not
    declare it anew is not."""
    own_as_joined: ClassVar[bool] = True
    """Whether a client's own model is its blocks, joined: one that clients share whole is then scored for many of them
    at once. A subclass with an `own_model` of its own that does not declare it anew has other ones."""
    reports_training: ClassVar[bool] = True
    """Whether every answer but to an evaluation says what training did, and no more. A subclass with a `local_step` of
    its own that does not declare it anew may say anything: see `expects`."""
    gives_away: ClassVar[str | None] = ""
    """What becomes known of single clients beside blocks that are merged, in words (empty: nothing; None: nobody said).
    A subclass with a `round` or `local_step` of its own that does not declare it anew has not said."""

    sharing: Sharing = Field(default_factory=Sharing)
    objective: Objective = Field(default_factory=Objective)
    merge: Merge = Field(default_factory=Merge)

    def __init_subclass__(cls) -> None:
        """Let a class with a step or an own model of its own be known as such, unless it says otherwise itself."""
        hooks = {
            "side_by_side": {"train", "local_step"},
            "own_as_joined": {"own_model"},
            "reports_training": {"local_step"},
        }
        for declared, own in hooks.items():
            owner = next(kind for kind in cls.__mro__ if vars(kind).keys() & {declared, *own})
            setattr(cls, declared, vars(owner).get(declared, False))
        said = next(kind for kind in cls.__mro__ if vars(kind).keys() & {"gives_away", "round", "local_step"})
        cls.gives_away = vars(said).get("gives_away")

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates and not only their sums: memory depends on it."""
        return self.sharing.sees_updates

    def width(self, client: ClientInfo) -> float:
        """Return which share of every hidden layer's units a client holds: the leading ones; by default all."""
        return 1.0

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model that this method trains, made of the one in the settings; by default that one."""
        return model

    def equip(self, model: nn.Module, shape: Shape, outputs: int) -> nn.Module:
        """Do as `prepare` does, for a method that must know what the model's inputs and outputs are."""
        return self.prepare(model)

    def check(self, server: Server) -> None:
        """Raise if the method cannot work with these clients and models: asked of the server before a run begins."""

    def doubt(self, server: Server) -> str:
        """Return why this method is hardly meant for these clients; nothing if there is no doubt."""
        return self.sharing.doubt(Listed(list(server.clients), server.clients.__getitem__))

    def stretched(self, done: int, before: int, now: int) -> tuple[str, ...]:
        """Return the settings by which the first `done` rounds of a run of `before` and of `now` rounds differ.

        Asked when a run gets another length; a method that reads `server.rounds` says here what depends on it.
        """
        return ()

    def round(self, server: Server) -> Round:
        """Play one round: yield each exchange, get back the clients' updates."""
        replies = yield Exchange("train")
        self.sharing.regroup(server, replies)

    def train(self, client: LocalClient) -> Trained:
        """Train `client.model` on the client's own data: minimise the objective; or what a method adds to it."""
        return client.train(self.objective)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Do the client's part of an exchange; return the values that travel back: what training did."""
        return report(self.train(client))

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return how often a client's training samples go through a block in an exchange: forward and back; forward.

        A fleet's clock counts multiplications by it. Of an exchange that trains nothing, it takes one way forward.
        """
        return training.epochs, 0

    def rehearse(self, model: nn.Module, x: Tensor) -> None:
        """Pass inputs through all that a client computes with, so that multiplications can be counted."""
        model(x)

    @property
    def flushes_after(self) -> int:
        """After how many answers the server goes on without waiting for the others (0: a round waits for all)."""
        return 0

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what the values and named tensors of a client's answer may be; what differs is refused.

        With the usual local step that is known. A method with a step of its own should say it: else any plain
        values and finite tensors pass.
        """
        return of_training(asked) if self.reports_training else unknown(asked)

    def check_reply(self, model: nn.Module, update: Update) -> None:
        """Raise `Refused` if values and named tensors do not fit each other; `model` is the client's."""

    def admit(self, update: Update, sent: Mapping[Address, Block], lr: float) -> Update:
        """Return an update as it is merged; `sent` are the blocks as they went out, `lr` is the clients' of the round.

        By default as it came. What it holds has not been checked yet; what does not fit is refused afterwards.
        """
        return update

    def evaluation(self, server: Server) -> Round:
        """Play an evaluation of every client: its last exchange is the one of `own`."""
        yield self.own(server)

    def own(self, server: Server) -> Exchange:
        """Return the exchange that gives clients what their own models are made of."""
        return Exchange(EVALUATE)

    def lend(self, state: dict[str, Any], client: str, to: str) -> Any:
        """Let a client that comes when all is done begin with what the server decided for another one, beside groups.

        `state` is what the method keeps on the server. Return what was lent, a plain value (None: nothing).
        """
        return None

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Make the client's own model of its blocks; yield the stages to evaluate, the last one `own`."""
        yield OWN


def report(trained: Trained) -> dict[str, Any]:
    """Return what local training did as values that travel."""
    score = trained.score
    return {
        "n": score.n,
        "correct": score.correct,
        "loss": score.loss,
        "steps": trained.steps,
        "step_weight": trained.step_weight,
    }
