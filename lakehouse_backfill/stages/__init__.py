"""One module per verb: read through ports, decide with rules, act through ports."""
