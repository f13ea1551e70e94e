"""`python -m proxy`: the command ring-proxy."""

import sys

from proxy.cli import main

sys.exit(main())
