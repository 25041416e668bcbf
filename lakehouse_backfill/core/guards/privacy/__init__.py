"""Privacy before a run: masks and rules of use."""
