"""What is asked and what came of it, as plain data: parameters, tasks, scenarios, outcomes and events, as JSON too."""
