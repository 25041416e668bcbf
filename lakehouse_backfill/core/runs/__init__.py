"""Shared base of all verbs: context, run states, event log, roles, hooks, gate registry."""
