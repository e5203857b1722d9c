"""Workers on other machines, by dask.distributed."""
