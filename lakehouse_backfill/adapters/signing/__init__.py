"""Signatures: SSH keys by ssh-keygen, Ed25519 key files, identity tokens of CI jobs."""
