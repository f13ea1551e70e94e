"""What the operator says: settings, patterns of names, credentials, certificates, tokens, and files that change."""
