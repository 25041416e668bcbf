"""The commands, by phase of a restatement."""
