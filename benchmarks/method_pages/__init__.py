"""The pages of docs/methods, pictures and tables: `python -m benchmarks.method_pages` writes them.

A page is prose with places for what the code knows better. `methods.toml` has, for every page, the settings of the run
that it shows; that run is played with four clients, and the picture is drawn from its messages.
"""
