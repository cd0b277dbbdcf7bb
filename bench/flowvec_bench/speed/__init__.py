"""How fast flowvec is on this machine, and how much memory it takes."""
