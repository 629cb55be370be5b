"""The judgement of a trial by its program's output, files and variables, beside the golden run's."""
