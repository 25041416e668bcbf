"""The accepted-version pointer of a product, and what readers get."""
