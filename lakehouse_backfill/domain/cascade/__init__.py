"""Values of cascades: what products declare of their upstreams, and what a cascade decides."""
