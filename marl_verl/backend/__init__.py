"""What trains and samples: verl on Ray."""
