"""The command `fpa`: a typed function for every command, from which its options and its help are made.

Nothing else prints or reads the command line; `fpa.cli.main.main` runs it.
"""
