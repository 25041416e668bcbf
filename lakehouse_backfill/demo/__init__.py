"""The guided demo: a real table, a bad release, a safe restatement."""
