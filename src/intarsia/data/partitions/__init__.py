"""How one data set is dealt to clients."""
