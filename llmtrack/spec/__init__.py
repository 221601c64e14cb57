"""Plain data shared by all layers: parameters, tasks, scenarios, outcomes and events, with their JSON form."""
