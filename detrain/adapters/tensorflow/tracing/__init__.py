"""Functions traced and layers built in the loop, and how a resumed run builds them ahead."""
