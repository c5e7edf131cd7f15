"""The Kokuban server: a blackboard that a team of AI agents shares."""
