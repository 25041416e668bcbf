"""Watches runs from outside: metrics and alerts, from the ledger, the logs and the evidence."""
