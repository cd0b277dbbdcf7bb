"""The command `flowvec`: one module per subcommand."""
