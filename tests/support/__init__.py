"""What tests share: fakes of the ports, lakes, example values and independent oracles."""
