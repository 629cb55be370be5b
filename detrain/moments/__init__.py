"""Any moment of a run that is over: stood at, or with statements that were added since."""
