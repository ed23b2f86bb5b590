"""Result files of other benchmark tools, one tool's layout a module; `results.formats` asks them before its own."""
