"""Find the structure of a program by watching it run: observe (updates, turns of loops) -> infer -> Structure."""
