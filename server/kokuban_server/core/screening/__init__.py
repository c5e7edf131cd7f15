"""What a text would do to whoever reads it as instructions: views of it, rules over them, a verdict."""
