"""From a run manifest to a plan: scope, chunks, pins, estimates, write path, refusals."""
