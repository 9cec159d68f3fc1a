"""Drafters and sources of drafts: they propose token trees."""
