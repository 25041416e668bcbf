"""Show and prove why a run was accepted: status, attribution, verify, reproduce."""
