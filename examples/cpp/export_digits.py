# SPDX-License-Identifier: BSD-3-Clause
"""Writes digits.bin beside this file: scikit-learn's 1797 scanned digits (from the UCI repository),
65 bytes each, the 8x8 pixels from 0 to 16, then the digit."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
records = np.concatenate([digits.data, digits.target[:, None]], axis=1).astype(np.uint8)
Path(__file__).with_name("digits.bin").write_bytes(records.tobytes())
