"""The documentation as a web site (`make site`): the pages of `docs`, and a reference made from the code."""
