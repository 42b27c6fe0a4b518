"""What the three servers share: options, life cycle, channels, errors. Imports no torch."""
