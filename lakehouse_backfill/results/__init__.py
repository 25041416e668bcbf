"""What the methods of `Project` return: immutable values, whose fields are those of `--json`."""
