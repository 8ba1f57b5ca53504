"""Tasks on generated items, each family with options for the kind of loss and the decoder."""
