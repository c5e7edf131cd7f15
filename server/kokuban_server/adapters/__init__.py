"""The ports put into practice, one package for each technology."""
