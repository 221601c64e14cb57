"""One file per entry point of `MLproject`: the question, the scenarios, the plots, the reading."""
