"""How sure shares of trials are, how many trials that takes, and when a campaign may end: data in, numbers out."""
