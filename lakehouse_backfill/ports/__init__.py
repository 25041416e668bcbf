"""What the stages need from the outside, as small protocols; the adapters implement them."""
