"""Other tools that compare tables, each in an environment of its own."""
