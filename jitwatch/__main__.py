"""`python -m jitwatch`."""

import sys

from jitwatch.cli import main

sys.exit(main())
