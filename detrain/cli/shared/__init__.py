"""What commands share: options, and tables for people."""
