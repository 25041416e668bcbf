"""Values of the guards: what they find, and what a person allows."""
