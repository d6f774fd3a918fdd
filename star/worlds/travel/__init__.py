"""The TravelPlanner world over the published tables or an embedded one."""
