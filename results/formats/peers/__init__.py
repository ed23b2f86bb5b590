"""Result files of other benchmark tools, one project per module; `results.formats` tries them first."""
