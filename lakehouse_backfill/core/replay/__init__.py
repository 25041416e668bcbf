"""Replay of events through handlers: each event once, in order, with its effect and its ledger."""
