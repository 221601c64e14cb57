"""One model on several cards: each layer sharded, or whole layers placed on different cards."""
