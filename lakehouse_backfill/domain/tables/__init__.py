"""Tables as values: their state, their files, changes of their columns, and commits to them."""
