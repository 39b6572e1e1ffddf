"""The command `fpa`: a typed function a subcommand."""
