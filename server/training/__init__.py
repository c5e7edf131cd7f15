"""Trains the classifier of texts from outside. No part of the server: it is not installed with it."""
