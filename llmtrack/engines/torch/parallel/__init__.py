"""One model on several cards: its layers shared out or placed one after the other."""
