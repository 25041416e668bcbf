"""What a run reads: versions, pins, windows, and whether all of an input is there."""
