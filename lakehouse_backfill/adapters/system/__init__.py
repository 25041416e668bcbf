"""The operating system: process, journal, hooks, archived code."""
