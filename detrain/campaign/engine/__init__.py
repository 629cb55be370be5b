"""A campaign: its plan, its ledger, and the workers that fill it."""
