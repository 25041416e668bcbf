"""What the tests compare the product with: written from the rules, sharing no code with it."""
