"""The command `flowvec`: one module a subcommand."""
