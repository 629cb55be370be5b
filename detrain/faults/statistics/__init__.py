"""Statistics of trials: how sure shares are, how many trials that takes, when a campaign may end. Numbers only."""
