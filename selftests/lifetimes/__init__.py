# SPDX-License-Identifier: GPL-2.0
"""Parts of lifetimes_matrix.py (the program under test, a case, the endings) and of streams_lifetimes.py."""
