"""What every verb needs of a run: its ports, its states, its events, who may act, and the gates."""
