"""The operator's choices: settings, patterns of names, credentials, certificates, tokens, and files that change."""
