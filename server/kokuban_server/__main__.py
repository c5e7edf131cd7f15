"""`python -m kokuban_server`: the server's verbs without the client's command line."""

from kokuban_server.commands import main

main()
