"""A campaign on its way: its conductor and gate, what operators do to it, its approval, release and sign-off."""
