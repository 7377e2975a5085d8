"""What commands share: options, output, progress, failures and times."""
