"""Judge the staged result by all gates."""
