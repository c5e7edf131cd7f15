"""Secrets and personal data in a text: found, and masked, before anything is kept."""
