"""Compare two table states: diff, fingerprints, distributions."""
