//! The kernel ring on real files: every rung of the ladder, both tables, waiting, fullness, errors.
