"""Page-size policies, one a file; see `hugewise.policy`."""
