"""pFedClub and pFedHR: teachers put together from clients' blocks."""

from intarsia.methods.pfedclub.assembly import (
    Assembled,
    Assembly,
    Blueprint,
    Constraint,
    Cost,
    activations_limit,
    assemble,
    at_most,
    chain_cost,
    flops_limit,
    own_model,
    size_limit,
)
from intarsia.methods.pfedclub.cka import Similarity, compare, linear_cka, similarity
from intarsia.methods.pfedclub.cmsr import Search, candidates
from intarsia.methods.pfedclub.decompose import Chain, Chains, FunctionalBlock, Ref, decompose
from intarsia.methods.pfedclub.groups import Groups, group_blocks
from intarsia.methods.pfedclub.stitch_tuning import (
    Choice,
    Prefixes,
    Tailored,
    Tailoring,
    agreement,
    choose,
    size_change,
    tailor,
)
from intarsia.methods.pfedclub.stitches import Stitch
from intarsia.methods.pfedclub.views import PublicData, augment, labelled, nt_xent, unlabelled

__all__ = [
    "Assembled",
    "Assembly",
    "Blueprint",
    "Chain",
    "Chains",
    "Choice",
    "Constraint",
    "Cost",
    "FunctionalBlock",
    "Groups",
    "Prefixes",
    "PublicData",
    "Ref",
    "Search",
    "Similarity",
    "Stitch",
    "Tailored",
    "Tailoring",
    "activations_limit",
    "agreement",
    "assemble",
    "at_most",
    "augment",
    "candidates",
    "chain_cost",
    "choose",
    "compare",
    "decompose",
    "flops_limit",
    "group_blocks",
    "labelled",
    "linear_cka",
    "nt_xent",
    "own_model",
    "similarity",
    "size_change",
    "size_limit",
    "tailor",
    "unlabelled",
]
