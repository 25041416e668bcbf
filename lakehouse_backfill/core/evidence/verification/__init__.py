"""Whether what is stored is what was accepted: all logs, one run, its data files."""
