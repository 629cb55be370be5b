"""What is traced and built in the loop, and how a resumed run builds it ahead."""
