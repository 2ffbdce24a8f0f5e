"""The mathematics: one optimizer a file, pure functions over an abstract array namespace."""
