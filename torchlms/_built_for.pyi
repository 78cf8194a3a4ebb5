# SPDX-License-Identifier: BSD-3-Clause
# setup.py writes the module when it builds.
TORCH_VERSION: str
