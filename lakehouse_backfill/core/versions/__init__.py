"""The accepted-version pointer of a product, and the table and snapshot that readers get."""
