"""Reports for people and machines: a module for each form, each a function of a `Report`."""
