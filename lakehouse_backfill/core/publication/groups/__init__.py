"""Publications of several runs at once: pinned products, and followed ones."""
