"""CMSR: worked examples, all chains of small cases, and properties of every candidate."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from intarsia.methods.pfedclub.assembly import own_model
from intarsia.methods.pfedclub.cka import Similarity
from intarsia.methods.pfedclub.cmsr import CMSR, Search
from intarsia.methods.pfedclub.decompose import Cost, FunctionalBlock, Ref, total

VECTOR, MAP = (4,), (4, 2, 2)


def chain(kinds, sizes=None, start=MAP):
    """A model whose blocks only have kinds and sizes; all conv blocks fit each other, and all fc ones."""
    blocks, shape = [], start
    for i, kind in enumerate(kinds):
        takes, shape = shape, MAP if kind == "conv" else VECTOR
        size = sizes[i] if sizes else 10
        blocks.append(FunctionalBlock(i, f"b{i}", kind, nn.Sequential(), takes, shape, Cost(size, size, 2)))
    return tuple(blocks)


def alike(groups, values=None):
    blocks = tuple(groups)
    return Similarity(blocks, np.eye(len(blocks)) if values is None else values)


def search(model, chains, groups, seed=0, constraints=(), known=None, **options):
    draw = np.random.default_rng(seed)
    known = known or alike(groups)
    return CMSR(model, chains, groups, known, Search(**options), draw, constraints).candidates()


def size_limit(chain, eta):
    most = (1 + eta) * total(block.cost for block in chain).parameters
    return lambda cost: cost.parameters <= most


def pairs(assembly):
    return [(ref.model, ref.index) for ref in assembly.blocks]


FIGURE = {
    **{("1", 0): 0, ("1", 1): 1, ("1", 2): 2, ("1", 3): 3},
    **{("2", 0): 0, ("2", 1): 0, ("2", 2): 1, ("2", 3): 2, ("2", 4): 2},
    **{("3", 0): 3, ("3", 1): 1, ("3", 2): 1, ("3", 3): 3},
    **{("4", 0): 1, ("4", 1): 0, ("4", 2): 3, ("4", 3): 2},
}


def figure():
    """Four clients and groups in the manner of the paper's Figure 2 (indices from 0)."""
    chains = {key: chain(["fc"] * n, start=VECTOR) for key, n in (("1", 4), ("2", 5), ("3", 4), ("4", 4))}
    return chains, {Ref(*block): group for block, group in FIGURE.items()}


def test_worked_example():
    chains, groups = figure()
    seeds = (search("1", chains, groups, seed, most=99) for seed in range(50))
    found = next(f for f in seeds if f[0].blocks[0] == Ref("4", 1))
    # Behind 4:1, group 1 has 2:2 and 3:2; then group 2 has 2:3, 2:4 and 4:3; group 3 has none above 3: own 1:3.
    assert sorted(map(pairs, found)) == sorted(
        [("4", 1), second, third, ("1", 3)]
        for second in [("2", 2), ("3", 2)]
        for third in [("2", 3), ("2", 4), ("4", 3)]
    )
    assert {f.filled for f in found} == {3}
    capped = search("1", chains, groups, 7, most=4)
    assert len(capped) <= 4


def test_worked_example_without_completion_and_without_order():
    chains, groups = figure()
    for seed in range(10):
        for short in search("1", chains, groups, seed, nbc=True, most=99):
            assert len(short.blocks) == short.filled
    anchor = search("1", chains, groups, 0, noc=True, most=999)
    # Any of group 1 (5 blocks), of group 2 (4) and of group 3 (4), one anchor.
    assert len(anchor) == 5 * 4 * 4
    assert all(a.filled == 4 for a in anchor)


def test_anchors():
    chains, groups = figure()
    group = [Ref("1", 0), Ref("2", 0), Ref("2", 1), Ref("4", 1)]
    drawn = {search("1", chains, groups, seed)[0].blocks[0] for seed in range(60)}
    assert drawn == set(group)
    smallest = {search("1", chains, groups, seed, anchor="min")[0].blocks[0] for seed in range(30)}
    assert smallest == {Ref("1", 0), Ref("2", 0)}
    values = np.zeros((len(groups),) * 2)
    order = list(groups)
    for ref, value in zip(group, (2.0, 0.5, 1.5, 1.0), strict=True):
        values[0, order.index(ref)] = value
    outside = order.index(Ref("3", 1))
    values[0, outside] = 1.9  # more similar, but of another group
    known = alike(groups, values)
    most = {search("1", chains, groups, s, known=known, anchor="max")[0].blocks[0] for s in range(20)}
    assert most == {Ref("2", 1)}


def test_alone_in_its_group_a_block_stays():
    chains, groups = {"a": chain(["conv", "fc"])}, {Ref("a", 0): 0, Ref("a", 1): 1}
    for anchor in ("random", "max", "min"):
        (only,) = search("a", chains, groups, anchor=anchor)
        assert only.is_own("a", chains)


def test_vectors_do_not_become_maps_unless_allowed():
    chains = {"a": chain(["conv", "conv", "fc"]), "b": chain(["fc"])}
    groups = {Ref("a", 0): 0, Ref("a", 1): 1, Ref("a", 2): 2, Ref("b", 0): 0}
    for seed in range(20):
        for found in search("a", chains, groups, seed):
            # Behind b:0 may stand neither the conv block of group 1 nor the model's own blocks from there.
            assert found.is_own("a", chains)
    anchors = {search("a", chains, groups, seed, fc_to_conv=True)[0].blocks[0].model for seed in range(20)}
    assert anchors == {"a", "b"}


def test_the_own_model_stands_in_when_nothing_is_allowed():
    chains, groups = figure()
    (only,) = search("1", chains, groups, 0, constraints=[lambda cost: cost.parameters < 15])
    assert only == own_model("1", chains)


def test_limits_keep_what_fits():
    chains = {key: chain(["fc"] * 3, sizes, VECTOR) for key, sizes in (("a", [5, 5, 5]), ("b", [4, 7, 5]))}
    groups = {Ref(key, i): i for key in "ab" for i in range(3)}
    wanted = {"aaa": 15, "aab": 15, "baa": 14, "bab": 14, "bba": 16, "bbb": 16, "aba": 17, "abb": 17}
    found = set()
    for seed in range(20):
        limit = size_limit(chains["a"], 0.1)  # 16.5
        found |= {"".join(r.model for r in f.blocks) for f in search("a", chains, groups, seed, [limit])}
    assert found == {name for name, size in wanted.items() if size <= 16}


@st.composite
def clubs(draw):
    """Some models of random kinds and sizes, and groups."""
    chains = {}
    for key in "abcd"[: draw(st.integers(1, 4))]:
        convs, denses = draw(st.integers(0, 3)), draw(st.integers(1, 2))
        sizes = draw(st.lists(st.integers(1, 40), min_size=convs + denses, max_size=convs + denses))
        chains[key] = chain(["conv"] * convs + ["fc"] * denses, sizes)
    blocks = [Ref(key, i) for key, c in chains.items() for i in range(len(c))]
    count = draw(st.integers(1, 4))
    groups = {ref: draw(st.integers(0, count - 1)) for ref in blocks}
    return chains, groups


def allowed(chains, last, ref, noc, fc_to_conv):
    one, other = chains[last.model][last.index], chains[ref.model][ref.index]
    return (noc or ref.index > last.index) and (fc_to_conv or not (one.kind == "fc" and other.kind == "conv"))


def every_chain(chains, groups, model, anchor, noc, nbc, fc_to_conv):
    """All chains by brute force: level by level, with plain lists."""
    own = [Ref(model, i) for i in range(len(chains[model]))]
    done, going = [], [[anchor]]
    while going:
        now = going.pop()
        if len(now) == len(own):
            done.append((tuple(now), len(now)))
            continue
        after = [
            r
            for r in groups
            if groups[r] == groups[own[len(now)]] and allowed(chains, now[-1], r, noc, fc_to_conv)
        ]
        going += [[*now, r] for r in after]
        if not after and nbc:
            done.append((tuple(now), len(now)))
        elif not after and allowed(chains, now[-1], own[len(now)], True, fc_to_conv):
            done.append((tuple(now + own[len(now) :]), len(now)))
    return set(done)


def check(one, model, chains, groups, noc, nbc, fc_to_conv):
    """Check a candidate by the words of Algorithm 1."""
    own = [Ref(model, i) for i in range(len(chains[model]))]
    found, rest = one.blocks[: one.filled], one.blocks[one.filled :]
    assert all(groups[ref] == groups[mine] for ref, mine in zip(found, own, strict=False))
    assert noc or all(a.index < b.index for a, b in pairwise(found))
    steps = pairwise(one.blocks)
    assert all(allowed(chains, a, b, True, fc_to_conv) for a, b in steps)
    assert rest == (() if nbc else tuple(own[one.filled :]))
    if one.filled < len(own):  # it ran dry: no block of the group could follow
        group = groups[own[one.filled]]
        assert not any(
            allowed(chains, found[-1], ref, noc, fc_to_conv) for ref in groups if groups[ref] == group
        )


SWITCHES = st.fixed_dictionaries({"noc": st.booleans(), "nbc": st.booleans(), "fc_to_conv": st.booleans()})


@given(clubs(), SWITCHES, st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_candidate_is_one_of_algorithm_1(club, switches, most, seed):
    chains, groups = club
    for model in chains:
        found = search(model, chains, groups, seed, most=most, **switches)
        assert found == search(model, chains, groups, seed, most=most, **switches)
        assert 1 <= len(found) <= most
        assert len({f.blocks for f in found}) == len(found)
        assert len({f.blocks[0] for f in found}) == 1
        if found != [own_model(model, chains)]:
            for one in found:
                check(one, model, chains, groups, **switches)


@given(clubs(), st.booleans(), st.booleans(), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_chain_is_missed(club, nbc, fc_to_conv, most, seed):
    chains, groups = club
    switches = {"noc": False, "nbc": nbc, "fc_to_conv": fc_to_conv}
    for model in chains:
        found = search(model, chains, groups, seed, most=most, **switches)
        every = every_chain(chains, groups, model, found[0].blocks[0], **switches)
        if every:
            assert {(f.blocks, f.filled) for f in found} <= every
            assert len(found) == min(most, len(every))
        else:
            assert found == [own_model(model, chains)]


@given(clubs(), st.floats(-0.5, 1.0), st.integers(0, 99))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_limits_hold_for_every_candidate(club, eta, seed):
    chains, groups = club
    for model in chains:
        limit = size_limit(chains[model], eta)
        found = search(model, chains, groups, seed, [limit])
        assert found == [own_model(model, chains)] or all(limit(f.cost) for f in found)


def test_more_constraints_are_plain_functions():
    chains, groups = figure()
    seen = []

    def memory(cost: Cost) -> bool:
        seen.append(cost)
        return cost.macs <= 40

    assert search("1", chains, groups, 0, [memory])
    assert seen
    assert total(block.cost for block in chains["1"]) == Cost(40, 40, 8)


def test_output_blocks_stand_last_if_that_is_asked():
    chains, groups = figure()
    ends = {(key, len(own) - 1) for key, own in chains.items()}
    loose, seen = False, 0
    for seed in range(20):
        for model in chains:
            for one in search(model, chains, groups, seed, outputs_last=True):
                seen += 1
                assert [pair in ends for pair in pairs(one)] == [False] * (len(chains[model]) - 1) + [True]
            loose |= any(
                pair in ends for one in search(model, chains, groups, seed) for pair in pairs(one)[:-1]
            )
    assert seen > 80
    assert loose
