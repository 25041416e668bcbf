"""REST catalogs: how requests are sent, and what answers mean."""
