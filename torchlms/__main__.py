# SPDX-License-Identifier: BSD-3-Clause
import sys

from torchlms.cli import main

sys.exit(main())
