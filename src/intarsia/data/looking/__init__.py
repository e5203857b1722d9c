"""A look at own files: what is in them, what is odd, and settings that fit."""

from intarsia.data.looking.look import Look, look
from intarsia.data.looking.recipe import recipe_for

__all__ = ["Look", "look", "recipe_for"]
