# SPDX-License-Identifier: GPL-2.0
"""Parts of lifetimes_matrix.py: the program under test, a case, and the endings."""
